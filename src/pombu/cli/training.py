"""What `pombu train` and `pombu resume` share: watching a run, and its last words."""

import json
from typing import Any

from rich.console import Console

from pombu.training.callbacks import Callback, StopAfter, StopAtReturn
from pombu.training.display import display
from pombu.training.loggers import TensorBoard, WeightsAndBiases
from pombu.training.loop import Result
from pombu.training.run import EVALUATION, Run, RunSpec


def announce(text: str, json_output: bool) -> Console:
    """Show a first line before anything is compiled; gives where to show the rest."""
    console = Console(stderr=json_output)
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    return console


def watchers(
    console: Console,
    spec: RunSpec,
    target_return: float | None,
    max_minutes: float | None,
) -> list[Callback]:
    """Display, loggers and stop conditions of a run."""
    callbacks: list[Callback] = [display(console)]
    if spec.tensorboard:
        callbacks.append(TensorBoard())
    if spec.wandb:
        callbacks.append(WeightsAndBiases())
    if target_return is not None:
        callbacks.append(StopAtReturn(target_return))
    if max_minutes is not None:
        callbacks.append(StopAfter(60 * max_minutes))
    return callbacks


def finish(run: Run, result: Result[Any], json_output: bool) -> int:
    """Say how a run ended and where everything is; gives the exit code."""
    code = 0 if result.signal is None else 128 + result.signal
    evaluation = None
    if result.finished:
        evaluation = json.loads((run.path / EVALUATION).read_bytes())
    if json_output:
        summary = {
            "folder": str(run.path),
            "finished": result.finished,
            "iteration": int(result.state.iteration),
            "real_steps": int(result.state.real_steps),
            "evaluation": evaluation,
        }
        print(json.dumps(summary))
        return code
    if evaluation is None:
        done = int(result.state.iteration)
        kept = f"{done} finished iterations are" if done != 1 else "1 iteration is"
        print(
            f"Stopped; {kept} saved, and `pombu resume {run.named}` goes on from "
            "there, bit for bit."
        )
    else:
        final = evaluation["deterministic"]
        print(
            f"Done: return {final['mean']:.1f} ± {final['std']:.1f} over "
            f"{final['episodes']} episodes without the policy's noise. Everything is "
            f"in {run.path}.\nNext: pombu report {run.named}, pombu video {run.named}, "
            f"pombu evaluate {run.named} --episodes 100"
        )
    return code
