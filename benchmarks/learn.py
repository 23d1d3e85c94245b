"""Does it still learn? HalfCheetah with `fast` for 16,000 real steps, in minutes.

The threshold is half of what another seed had reached by then (1029, seed 0 of
`results/halfcheetah`) and far above the random policy's -55 and the untrained policy's
-60, so it fails when learning is broken and not when a seed is unlucky.
"""

import json
import sys
import tempfile
from pathlib import Path

from pombu.analysis.curves import read_curves
from pombu.cli import main

STEPS = 16_000
SEED = 7
THRESHOLD = 500.0


def learn() -> int:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        flags = f"--env HalfCheetah --preset fast --seed {SEED} --total-steps {STEPS}"
        code = main(["train", *flags.split(), "--out", str(run)])
        if code:
            return code
        curve = read_curves([run])[0]
    returns = [round(value, 1) for value in curve.column("return_real")]
    reached = max(returns[-3:])
    verdict = "still learns" if reached >= THRESHOLD else "does not learn any more"
    print(json.dumps({"returns": returns, "threshold": THRESHOLD}))
    print(f"HalfCheetah at {STEPS} steps: {reached}, at least {THRESHOLD}: {verdict}.")
    return 0 if reached >= THRESHOLD else 1


if __name__ == "__main__":
    sys.exit(learn())
