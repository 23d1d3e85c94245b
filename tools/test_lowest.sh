#!/usr/bin/env bash
# Test pombu with the lowest versions that pyproject.toml admits.
#
#   tools/test_lowest.sh FOLDER [PYTEST ARGUMENTS]
#
# makes a virtual environment in FOLDER, which is used again the next time. Without
# arguments it runs tests of every package, those of Stable-Baselines3 and Ray excepted.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:?"give a folder for the virtual environment"}
shift
python=${PYTHON:-python3}
wanted="$folder/lowest.txt"
mkdir -p "$folder"

if [ ! -x "$folder/uv/bin/uv" ]; then
    "$python" -m venv "$folder/uv"
    "$folder/uv/bin/pip" install --quiet uv
fi
uv="$folder/uv/bin/uv"
"$uv" pip compile --quiet --resolution lowest-direct --no-header --no-annotate \
    --extra dev --extra report --extra tensorboard \
    --python "$python" --output-file "$wanted" "$root/pyproject.toml"
if ! cmp --silent "$wanted" "$folder/installed.txt"; then
    "$uv" venv --quiet --clear --python "$python" "$folder/venv"
    "$uv" pip install --quiet --python "$folder/venv/bin/python" --requirement "$wanted"
    cp "$wanted" "$folder/installed.txt"
fi

# The cache of one JAX is of no use to another.
export JAX_COMPILATION_CACHE_DIR="$folder/jax" PYTHONPATH="$root/src:$root"
if [ $# -eq 0 ]; then
    set -- tests/training tests/envs tests/uncertainty tests/analysis \
        tests/engine/test_learner.py tests/engine/test_fit.py tests/cli/test_train.py \
        tests/cli/test_take_away.py tests/test_agent.py tests/own/test_strict_envs.py
fi
cd "$root"
# Newer packages warn of how older ones use them: that is their affair.
exec "$folder/venv/bin/python" -m pytest -q -m "not slow" -p no:cacheprovider \
    -W "ignore::DeprecationWarning" -W "ignore::PendingDeprecationWarning" "$@"
