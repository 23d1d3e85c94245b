"""What a kind of model is worth: its error by horizon on the episodes of stored runs.

Models are fitted to the first part of a run and replay real segments under their
recorded actions. Episodes of the same iterations that were held out say how well a
model knows what it was shown; those of the iterations right after, collected by a newer
policy, how well it knows where the policy goes next.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from pombu.agent.runs import algorithm_of
from pombu.analysis.plots import markdown_table, write_csv
from pombu.data import learn_from, no_experience
from pombu.data.episodes import EPISODES, load_episodes
from pombu.dynamics.config import ModelConfig
from pombu.dynamics.error import LARGEST, replay
from pombu.dynamics.fit import fit_dynamics, fresh_ensemble
from pombu.dynamics.model import dynamics_of
from pombu.envs import Episode, Task, short_name
from pombu.errors import UsageError, require_seed
from pombu.parallel import Workers
from pombu.training import checkpoint, config_file
from pombu.training.run import Run, open_run

HORIZONS = (1, 5, 20, 50, 100)
HELD_OUT_EVERY = 5
"""Of so many episodes of the first part one is held out."""
EVERYTHING = "all"
"""Stands for all dimensions together."""
_DETAIL = 20
"""Horizon at which the page lists dimensions."""
_GAMMA = 0.99
"""For the moments of returns, which predictions do not use."""


@dataclass(frozen=True)
class Variant:
    """One kind of model, or of its fit."""

    name: str
    config: ModelConfig


class Split(NamedTuple):
    """A run's episodes: to learn from, and two sets to be tested on."""

    training: list[Episode]
    held_out: list[Episode]
    newer: list[Episode]


class Row(NamedTuple):
    """An error in standard deviations of the state."""

    run: str
    task: str
    variant: str
    seed: int
    test: str
    """`held out` or `newer policy`."""
    horizon: int
    dimension: str
    rmse: float
    """Root mean square over members and segments; a few that diverge decide it."""
    median: float
    ninth_decile: float
    segments: int
    validation_loss: float
    fit_seconds: float
    """Of processor time, without compilation."""


def _usual_variants(base: ModelConfig) -> list[Variant]:
    """Both activations with both normalisations."""
    pairs = [(a, n) for n in ("weight", "layer") for a in ("relu", "silu")]
    return [
        variant_of(f"{a}-{n}:activation={a},normalisation={n}", base) for a, n in pairs
    ]


def variant_of(text: str, base: ModelConfig) -> Variant:
    """The variant that `name:field=value,...` describes; sizes are like 256x256.

    Raises:
        UsageError: A field is unknown, or its value of another type.
    """
    name, _, changes = text.partition(":")
    fields = config_file.to_json(base)
    for change in filter(None, changes.split(",")):
        field, equals, value = change.partition("=")
        if not equals or field not in fields:
            raise UsageError(
                f"--variant {text}: {change} is not a field of the model with a value, "
                "such as activation=silu."
            )
        fields[field] = _read(value, isinstance(fields[field], tuple))
    return Variant(
        name, config_file.from_json(ModelConfig, fields, f"--variant {name}")
    )


def _read(value: str, sizes: bool) -> object:
    """A number, sizes, True, False or None where it looks like one, else the text."""
    if sizes:
        return [_read(one, False) for one in value.split("x")]
    known = {"None": None, "True": True, "False": False}
    if value in known:
        return known[value]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _iterations_of(run: Run) -> list[list[Episode]]:
    """The run's real episodes, by the checkpoint that first stored them."""
    manifest = checkpoint.last(run.path)
    if manifest is None:
        raise UsageError(f"{run.path} has no checkpoint yet: train it first.")
    episodes = iter(load_episodes(run.path / EPISODES, manifest.shards))
    return [[next(episodes) for _ in range(s.episodes)] for s in manifest.shards]


def split(iterations: Sequence[Sequence[Episode]], share: float) -> Split:
    """Learn from the iterations within the first `share` of the real steps.

    As many newer episodes follow as are held out, in whole iterations.

    Raises:
        UsageError: A part would be empty.
    """
    steps = np.cumsum([sum(map(len, one)) for one in iterations])
    number = max(int(np.searchsorted(steps, share * steps[-1], side="right")), 1)
    early = [episode for one in iterations[:number] for episode in one]
    held_out = early[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    training = [e for n, e in enumerate(early, 1) if n % HELD_OUT_EVERY]
    newer: list[Episode] = []
    for one in iterations[number:]:
        newer += one
        if len(newer) >= len(held_out):
            break
    if not held_out or not newer:
        raise UsageError(
            f"The run has {len(iterations)} iterations, too few to learn from some and "
            f"be tested on others: give one with {HELD_OUT_EVERY} episodes in its "
            "first part and an iteration after it."
        )
    return Split(training, held_out, newer)


def study(
    folders: Sequence[Path],
    variants: Sequence[str],
    seeds: Sequence[int],
    share: float,
    steps: int,
    env: str | None = None,
) -> Iterator[Row]:
    """Fit every variant to every run, with every seed, and give its errors.

    Args:
        folders: run folders.
        variants: as `variant_of` reads them; none stands for the usual ones.
        seeds: of untrained weights, splits and batches.
        share: of the run's real steps that models may learn from.
        steps: gradient steps per fit, where a variant says nothing else.
        env: the environment's name where it is code outside pombu.
    """
    for seed in seeds:
        require_seed(seed)
    workers = Workers()
    for folder in folders:
        run = open_run(folder)
        algorithm = algorithm_of(run, env)
        given = getattr(algorithm.config, "model", None)
        base = given if isinstance(given, ModelConfig) else ModelConfig()
        # Every fit takes all its steps, and validation only chooses the best weights.
        base = replace(
            base,
            kind="ensemble",
            max_steps=steps,
            max_epochs=10**9,
            patience=10**9,
            steps_per_new_row=None,
        )
        chosen = [variant_of(one, base) for one in variants] or _usual_variants(base)
        parts = split(_iterations_of(run), share)
        for variant in chosen:
            for seed in seeds:
                found = measure(algorithm.task, parts, variant, seed, workers)
                name = short_name(algorithm.task.config.id)
                yield from (row._replace(run=run.path.name, task=name) for row in found)


def measure(
    task: Task, parts: Split, variant: Variant, seed: int, workers: Workers
) -> list[Row]:
    """Fit one variant once, and take its errors on both test sets."""
    config, rows = variant.config, sum(map(len, parts.training))
    nothing = no_experience(task.observation_dim, task.action_dim)
    experience = learn_from(nothing, parts.training, _GAMMA)
    fresh = fresh_ensemble(jax.random.key(seed), task, config)
    shared = (rows, (seed,), 0, workers)
    brief = replace(config, max_steps=1)
    fit_dynamics(fresh, parts.training, experience, brief, *shared)  # compiles
    before = time.process_time()
    ensemble, report = fit_dynamics(fresh, parts.training, experience, config, *shared)
    seconds = time.process_time() - before
    dynamics = dynamics_of(ensemble, experience, task, config)
    loss = float(report.validation_loss.mean())
    found: list[Row] = []
    for test, episodes in (("held out", parts.held_out), ("newer policy", parts.newer)):
        length = min(HORIZONS[-1], task.horizon)
        gap, lengths = replay(dynamics, episodes, task.horizon, length)
        start = Row("", "", variant.name, seed, test, 0, "", 0, 0, 0, 0, loss, seconds)
        found += errors(gap, lengths, start)
    return found


def errors(gap: np.ndarray, lengths: np.ndarray, start: Row) -> Iterator[Row]:
    """Rows of all horizons that are reached, together and dimension by dimension.

    Args:
        gap: [T, K, n, o] differences in standard deviations.
        lengths: [n] steps that each segment has.
        start: what all rows share.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        errors = np.fmin(np.abs(np.asarray(gap, np.float64)), LARGEST)
    for horizon in HORIZONS:
        reached = lengths >= horizon
        if horizon > len(gap) or not reached.any():
            continue
        here = errors[horizon - 1][:, reached]
        columns = {EVERYTHING: np.sqrt(np.mean(here**2, -1))}
        columns |= {str(d): here[..., d] for d in range(here.shape[-1])}
        for dimension, size in columns.items():
            yield start._replace(
                horizon=horizon,
                dimension=dimension,
                rmse=float(np.sqrt(np.mean(size**2))),
                median=float(np.median(size)),
                ninth_decile=float(np.quantile(size, 0.9)),
                segments=int(reached.sum()),
            )


def write(rows: Sequence[Row], out: Path) -> list[Path]:
    """Write every number as CSV and the main ones as a page."""
    out.mkdir(parents=True, exist_ok=True)
    page = out / "model-study.md"
    page.write_text(text_of(rows))
    return [write_csv(out / "model-study.csv", Row._fields, rows), page]


def text_of(rows: Sequence[Row]) -> str:
    """The page: a table per run and test set, and one with dimensions."""
    lines = [
        "# Model error by horizon",
        "",
        "Open loop under recorded actions, in standard deviations of the state, "
        "dimensions together (root mean square): median and ninth decile over members "
        "and segments, mean over seeds. Fits in seconds of processor time.",
    ]
    for run, task, test in dict.fromkeys((r.run, r.task, r.test) for r in rows):
        here = [r for r in rows if (r.run, r.test) == (run, test)]
        lines += ["", f"## {task} ({run}), {test}", "", _by_horizon(here)]
        if detail := [r for r in here if r.horizon == _DETAIL]:
            lines += ["", f"By dimension after {_DETAIL} steps, median:", ""]
            lines += [_by_dimension(detail)]
    return "\n".join(lines) + "\n"


def _by_horizon(rows: Sequence[Row]) -> str:
    together = [r for r in rows if r.dimension == EVERYTHING]
    horizons = sorted({r.horizon for r in together})
    header = ["variant", *map(str, horizons), "validation", "fit s"]
    lines = []
    for name in dict.fromkeys(r.variant for r in together):
        own = [r for r in together if r.variant == name]
        cells = []
        for horizon in horizons:
            at = [r for r in own if r.horizon == horizon]
            median, high = (
                _mean(r.median for r in at),
                _mean(r.ninth_decile for r in at),
            )
            cells.append(f"{median:.3f} ({high:.3g})")
        loss, seconds = (
            _mean(r.validation_loss for r in own),
            _mean(r.fit_seconds for r in own),
        )
        lines.append([name, *cells, f"{loss:.4f}", f"{seconds:.0f}"])
    return markdown_table(header, lines)


def _by_dimension(rows: Sequence[Row]) -> str:
    names = [d for d in dict.fromkeys(r.dimension for r in rows) if d != EVERYTHING]
    lines = []
    for variant in dict.fromkeys(r.variant for r in rows):
        own = [r for r in rows if r.variant == variant]
        medians = [_mean(r.median for r in own if r.dimension == d) for d in names]
        lines.append([variant, *(f"{median:.2f}" for median in medians)])
    return markdown_table(["variant", *names], lines)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
