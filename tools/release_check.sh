#!/usr/bin/env bash
# Builds sdist and wheel, installs each in a fresh environment, and uses it from outside
# the source tree. `tools/release_check.sh [FOLDER]` keeps everything in FOLDER.
set -euo pipefail
source_tree=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
folder=${1:-$(mktemp -d)}
mkdir -p "$folder/away"

"$python" -m venv "$folder/build-env"
"$folder/build-env/bin/python" -m pip install --quiet build
# The wheel is built from the sdist, so the sdist is known to be complete.
"$folder/build-env/bin/python" -m build --outdir "$folder/dist" "$source_tree"

"$python" -m venv "$folder/env"
"$folder/env/bin/python" -m pip install --quiet "$folder"/dist/*.whl
cd "$folder/away"
pombu="$folder/env/bin/pombu"

use() {
    version=$("$pombu" --version)
    case "$(basename "$folder"/dist/*.whl)" in
        "${version/ /-}"-*) ;;
        *) echo "the wheel is not $version" >&2; exit 1 ;;
    esac
    "$folder/env/bin/python" -c "
import pathlib, pombu
assert '$source_tree/src' not in pombu.__file__, pombu.__file__
assert pathlib.Path(pombu.__file__).with_name('py.typed').exists()
"
    "$pombu" doctor
    "$pombu" train --env Point2D --preset smoke --out "$1"
    "$pombu" evaluate "$1" --episodes 2
}

use from-wheel
"$folder/env/bin/python" -m pip install --quiet --no-deps --force-reinstall \
    "$folder"/dist/*.tar.gz
use from-sdist
cmp from-wheel/evaluation.json from-sdist/evaluation.json
echo "release check: wheel and sdist install and run outside the source tree"
