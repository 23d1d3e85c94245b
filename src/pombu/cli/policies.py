"""Commands for one trained policy: `pombu evaluate`, `export` and `video`."""

import dataclasses
import json
from pathlib import Path

import tyro

from pombu.agent.export import about_policy, export_policy, frames, write_video
from pombu.agent.runs import Which, algorithm_of, load_checkpoint, load_state
from pombu.analysis.report.measure import measure_intervals
from pombu.errors import UsageError
from pombu.training.loop import evaluate
from pombu.training.run import open_run

INTERVALS = "intervals.csv"


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Measure a trained policy on real episodes.

    Examples:
      pombu evaluate runs/cheetah --episodes 20
      pombu evaluate runs/cheetah --checkpoint best --stochastic --json
      pombu evaluate runs/cheetah --intervals
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    episodes: int = 20
    """Episodes to run."""
    checkpoint: Which = "last"
    """The last policy, or the one with the highest return during training."""
    stochastic: bool = False
    """Sample actions instead of taking their mean."""
    seed: int = 0
    """The same seed gives the same episodes."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    json: bool = False
    """Print one JSON object instead of a sentence."""
    intervals: bool = False
    """Also run the sampled policy, predict each return from its start with a 90 %
    interval, and write both to intervals.csv in the folder."""

    def run(self) -> int:
        """Run the episodes and print their returns."""
        run = open_run(self.folder)
        algorithm = algorithm_of(run, self.env)
        state = load_state(run, algorithm, self.checkpoint)
        result = evaluate(
            algorithm.task,
            algorithm.policy(state),
            self.episodes,
            self.seed,
            deterministic=not self.stochastic,
        )
        found = None
        if self.intervals:
            found = measure_intervals(algorithm, state, self.episodes, self.seed)
            found.write(run.path / INTERVALS)
        if self.json:
            where = {"folder": str(run.path), "iteration": int(state.iteration)}
            more = {} if found is None else {"coverage_90": found.coverage}
            print(json.dumps({**where, **result.to_json(), **more}))
            return 0
        kind = "sampled" if self.stochastic else "mean"
        print(
            f"return {result.mean:.2f} ± {result.std:.2f} over {self.episodes} "
            f"episodes of {algorithm.task.config.id} with {kind} actions "
            f"(iteration {int(state.iteration)}, {int(state.real_steps):,} real steps)"
        )
        if found is not None:
            print(
                f"{found.coverage:.0%} of {self.episodes} returns lie in their 90 % "
                f"interval ({run.path / INTERVALS})"
            )
        return 0


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a run's policy as one small file that needs no JAX.

    The name's ending says which. A .safetensors file is read with NumPy alone by
    `pombu.agent.numpy_policy.load_policy`; that module is one short file that can be
    copied along. An .onnx file is for ONNX runtimes (extra `onnx`).

    Examples:
      pombu export runs/cheetah policy.safetensors
      pombu export runs/cheetah policy.onnx
      pombu export runs/cheetah policy.safetensors --checkpoint best
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    file: tyro.conf.Positional[Path] = Path("policy.safetensors")
    """Where to write, .safetensors or .onnx; must not exist."""
    checkpoint: Which = "last"
    """The last policy, or the one with the highest return during training."""
    env: str | None = None
    """Not needed: the run folder knows sizes and bounds. Only a run of version 0.1 on
    `module:factory` asks for that name, to allow its code."""
    json: bool = False
    """Print one JSON object instead of a sentence."""

    def run(self) -> int:
        """Write the file."""
        if self.file.exists():
            raise UsageError(f"{self.file} exists already: choose another name.")
        run = open_run(self.folder)
        algorithm = algorithm_of(run, self.env, acts=True)
        found = load_checkpoint(run, algorithm, self.checkpoint)
        state = found.state
        about = about_policy(algorithm, state, run.spec.seed)
        about["checkpoint_sha256"] = found.manifest.state_sha256
        export_policy(self.file, algorithm, state, about)
        if self.json:
            print(json.dumps({"file": str(self.file), **about}))
        else:
            reader = "`pombu.agent.numpy_policy.load_policy` reads it without JAX"
            if self.file.suffix == ".onnx":
                reader = "its input is `observation`, its output the mean `action`"
            print(f"The policy is in {self.file}; {reader}.")
        return 0


@dataclasses.dataclass(frozen=True)
class Video:
    """Record a trained policy as mp4, one episode or more, with an animated preview.

    Examples:
      pombu video runs/cheetah
      pombu video runs/cheetah --episodes 3
      pombu video runs/cheetah --checkpoint best --out cheetah.mp4
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    out: Path | None = None
    """The mp4 file; None puts video.mp4 into the run folder."""
    episodes: int = 1
    """Episodes to record, one after the other."""
    checkpoint: Which = "last"
    """The last policy, or the one with the highest return during training."""
    stochastic: bool = False
    """Sample actions instead of taking their mean."""
    seed: int = 0
    """Which episode; further ones have the seeds that follow."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    json: bool = False
    """Print one JSON object instead of a sentence."""

    def run(self) -> int:
        """Record, and say where the files are."""
        path = self.out or self.folder / "video.mp4"
        if path.suffix != ".mp4":
            raise UsageError(f"{path} is no .mp4 file: choose a name that ends so.")
        if self.episodes < 1:
            raise UsageError(f"episodes is {self.episodes}: it must be at least 1.")
        run = open_run(self.folder)
        algorithm = algorithm_of(run, self.env)
        state = load_state(run, algorithm, self.checkpoint)
        policy, still = algorithm.policy(state), not self.stochastic
        seeds = range(self.seed, self.seed + self.episodes)
        recorded = [frames(algorithm.task, policy, seed, still) for seed in seeds]
        pictures = [one for shown, _, _ in recorded for one in shown]
        returns = [total for _, total, _ in recorded]
        preview = write_video(path, pictures, recorded[0][2])
        if self.json:
            files = {"video": str(path), "preview": str(preview)}
            found = {"return": sum(returns) / len(returns), "returns": returns}
            print(json.dumps({**files, "frames": len(pictures), **found}))
        else:
            several = f"{self.episodes} episodes with returns"
            what = "an episode with return" if self.episodes == 1 else several
            named = ", ".join(f"{one:.1f}" for one in returns)
            print(
                f"{len(pictures)} frames of {what} {named}: {path} and the preview "
                f"{preview}."
            )
        return 0
