"""A callback: watch a run, keep what you need, and stop it when it stops improving."""

import sys

from pombu import POMBU, Callback

SMOKE = "--smoke" in sys.argv


class StopWhenFlat(Callback):
    """Stops once the best return is `patience` iterations old."""

    def __init__(self, patience):
        self.patience = patience

    def on_start(self, progress):
        print(f"{progress.algorithm} on {progress.environment}, seed {progress.seed}")

    def on_stage_end(self, name, seconds):
        if name == "fit":
            print(f"  fitted the ensemble in {seconds:.1f} s")

    def on_evaluation(self, progress):
        metrics = progress.metrics
        print(
            f"{progress.real_steps} real steps: return {metrics['return_real']:.1f}, "
            f"the model promised {metrics['return_model']:.1f}, "
            f"mean sigma(Q) {metrics['uncertainty']:.2f}"
        )
        best = max(range(len(progress.returns)), key=progress.returns.__getitem__)
        return len(progress.returns) - 1 - best < self.patience  # False stops


task, preset = ("Point2D", "smoke") if SMOKE else ("HalfCheetah", "fast")
agent = POMBU(task, preset=preset, seed=0)
agent.learn(callbacks=[StopWhenFlat(patience=1 if SMOKE else 10)])
print(f"stopped after {int(agent.state.real_steps)} real steps")
