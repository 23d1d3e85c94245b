"""Which algorithms there are, their presets and options; without importing them."""

import dataclasses
import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pombu.envs import CATALOGUE, EnvConfig, Episode, Task, load, resolve, short_name
from pombu.errors import UsageError
from pombu.training import config_file

if TYPE_CHECKING:
    from pombu.data.episodes import EpisodeStore
    from pombu.training.algorithm import Algorithm


@dataclass(frozen=True)
class Entry:
    """An algorithm: what it is called, and the package that holds it.

    The package has `learner.Learner`, the config's class in `config`, and one function
    per preset in `presets`.
    """

    agent: str
    """The name of its agent class, as in `pombu.POMBU`."""
    title: str
    """What the agent class says of itself."""
    summary: str
    """One line for lists of algorithms."""
    package: str
    config: str
    """The config's class."""
    preset_prefix: str = ""
    """How its preset functions begin, where a package has those of two algorithms."""
    q_uncertainty: bool = False
    """Whether its agent tells how uncertain a Q-value is."""


ALGORITHMS = {
    "pombu": Entry(
        "POMBU",
        "Policy Optimization with Model-Based Uncertainty.",
        "policy optimisation with model-based uncertainty",
        "pombu.algorithms.pombu",
        "POMBUConfig",
        q_uncertainty=True,
    ),
    "meppo": Entry(
        "MEPPO",
        "Model-ensemble PPO: POMBU without its uncertainty.",
        "model-ensemble PPO: POMBU without its uncertainty",
        "pombu.algorithms.pombu",
        "POMBUConfig",
        preset_prefix="meppo_",
        q_uncertainty=True,
    ),
    "metrpo": Entry(
        "METRPO",
        "Model-Ensemble Trust-Region Policy Optimization.",
        "model-ensemble trust-region policy optimisation",
        "pombu.algorithms.metrpo",
        "METRPOConfig",
    ),
    "slbo": Entry(
        "SLBO",
        "Stochastic Lower Bound Optimization.",
        "stochastic lower bound optimisation: model and policy in turn",
        "pombu.algorithms.slbo",
        "SLBOConfig",
    ),
    "mbmpo": Entry(
        "MBMPO",
        "Model-Based Meta-Policy Optimization; acts by the policy before adaptation.",
        "model-based meta-policy optimisation: learns to adapt to every member",
        "pombu.algorithms.mbmpo",
        "MBMPOConfig",
    ),
    "pets": Entry(
        "PETS",
        "Probabilistic Ensembles with Trajectory Sampling: every action is planned, "
        "and `predict` searches from the middle of the box.",
        "probabilistic ensembles with trajectory sampling: plans, has no policy",
        "pombu.algorithms.pets",
        "PETSConfig",
    ),
    "steve": Entry(
        "STEVE",
        "Stochastic Ensemble Value Expansion.",
        "stochastic ensemble value expansion: actor-critic with targets from a model",
        "pombu.algorithms.steve",
        "STEVEConfig",
    ),
    "dhmbpo": Entry(
        "DHMBPO",
        "Double-Horizon Model-Based Policy Optimization.",
        "double-horizon model-based policy optimisation: gradients through the model",
        "pombu.algorithms.dhmbpo",
        "DHMBPOConfig",
    ),
    "mbpo": Entry(
        "MBPO",
        "Model-Based Policy Optimization.",
        "model-based policy optimisation: soft actor-critic on short imagined branches",
        "pombu.algorithms.mbpo",
        "MBPOConfig",
    ),
    "sac": Entry(
        "SAC",
        "Soft actor-critic, by sbx.",
        "soft actor-critic, model-free (sbx)",
        "pombu.algorithms.sac",
        "SACConfig",
    ),
    "droq": Entry(
        "DroQ",
        "Soft actor-critic with dropout and many updates per step, by sbx.",
        "soft actor-critic with dropout and many updates per step, model-free (sbx)",
        "pombu.algorithms.sac",
        "DroQConfig",
        preset_prefix="droq_",
    ),
    "tqc": Entry(
        "TQC",
        "Truncated quantile critics, by sbx.",
        "truncated quantile critics, model-free (sbx)",
        "pombu.algorithms.sac",
        "TQCConfig",
        preset_prefix="tqc_",
    ),
    "crossq": Entry(
        "CrossQ",
        "Soft actor-critic with batch normalisation, without target networks, by sbx.",
        "soft actor-critic with batch normalisation, model-free (sbx)",
        "pombu.algorithms.sac",
        "CrossQConfig",
        preset_prefix="crossq_",
    ),
    "ppo": Entry(
        "PPO",
        "Proximal policy optimisation, by sbx.",
        "proximal policy optimisation, model-free (sbx)",
        "pombu.algorithms.ppo",
        "PPOConfig",
    ),
}

PRESETS = ("paper", "fast", "smoke")
"""Named configurations of every algorithm. `paper` follows the algorithm's paper.
`fast` is what we recommend on a few cores: the same algorithm with a cheaper schedule.
`smoke` is tiny, for tests and for trying a set-up."""

_ARGUMENTS = ("env", "preset", "seed", "config", "data", "tensorboard_log")
"""What an agent takes beside the options of its algorithm."""


def find(name: str) -> Entry:
    """The algorithm with this name.

    Raises:
        UsageError: There is none.
    """
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name.lower(), ALGORITHMS, n=1)
        hint = f"did you mean {near[0]}?" if near else "choose one of them."
        known = ", ".join(ALGORITHMS)
        raise UsageError(f"There is no algorithm {name!r}; there are {known}: {hint}")
    return ALGORITHMS[name]


def config_type(name: str) -> type[Any]:
    """The dataclass of an algorithm's config."""
    return _config_type(find(name))


def _config_type(entry: Entry) -> type[Any]:
    module = importlib.import_module(f"{entry.package}.config")
    config: type[Any] = getattr(module, entry.config)
    return config


def require_config(name: str, config: Any) -> None:
    """Refuse what is no config of an algorithm.

    Raises:
        UsageError: Says so.
    """
    due = config_type(name)
    if not isinstance(config, due):
        raise UsageError(
            f"config is {config!r:.80}: give a {due.__name__}, such as "
            f'pombu.preset("{name}", "fast", env) makes.'
        )


def preset_function(name: str, preset: str) -> Callable[[str, int | None], Any]:
    """The function that gives an algorithm's config, by task and horizon."""
    entry = find(name)
    module = importlib.import_module(f"{entry.package}.presets")
    function: Callable[[str, int | None], Any] = getattr(
        module, f"{entry.preset_prefix}{preset}"
    )
    return function


def preset(algorithm: str, name: str, env: str, horizon: int | None = None) -> Any:
    """The configuration of an algorithm for a task, by the preset's name.

    An environment that is not pombu's is made once, to see how long its episodes are
    and which of reward and termination it knows; the others are to be learned.

    Args:
        algorithm: as on the command line.
        name: one of `PRESETS`.
        env: a task's full or short name, a Gymnasium id, or `module:factory`.
        horizon: steps per episode, where it is not the task's own.
    """
    _require("algorithm", algorithm, tuple(ALGORITHMS))
    _require("preset", name, PRESETS)
    full = resolve(env)
    environment = EnvConfig(id=full, horizon=horizon)
    values = preset_function(algorithm, name)
    if any(entry.id == full for entry in CATALOGUE):
        task = short_name(full)
        return replace(values(task, horizon), env=environment)
    foreign = load(environment)
    return replace(
        learn_the_unknown(values(full, foreign.horizon), foreign), env=environment
    )


def _require(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        near = difflib.get_close_matches(str(given), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "choose one of them."
        raise UsageError(
            f"There is no {what} {given!r}; there are {', '.join(known)}: {hint}"
        )


def learn_the_unknown(config: Any, task: Task) -> Any:
    """A config that learns what the task does not know, where it learns a model."""
    model: Any = getattr(config, "model", None)
    fields = getattr(model, "__dataclass_fields__", {})
    unknown = {
        field: "learned"
        for field, function in (("reward", "reward"), ("termination", "terminal"))
        if field in fields and function not in task.known
    }
    return replace(config, model=replace(model, **unknown)) if unknown else config


def defaults(name: str) -> dict[str, Any]:
    """An algorithm's settings where nothing is said, by dotted names."""
    return dict(_defaults(find(name)))


@cache
def _defaults(entry: Entry) -> dict[str, Any]:
    return config_file.flat(config_file.to_json(_config_type(entry)()))


def options(name: str) -> list[str]:
    """The dotted names of an algorithm's own options."""
    return [option for option in defaults(name) if not option.startswith("env.")]


def with_options(algorithm: str, config: Any, options: Mapping[str, Any]) -> Any:
    """A config with some of its fields changed.

    Args:
        algorithm: whose config it is.
        config: where all other values come from.
        options: `alpha=0.5`, `policy={"hidden": (256, 256)}`, `{"policy.hidden": ...}`
            or a part of a config, such as `model=ModelConfig(members=3)`.

    Raises:
        UsageError: There is no such option, or it does not take such a value.
    """
    data = config_file.to_json(config)
    known = config_file.flat(data)
    for key, value in flat_options(options).items():
        if key not in known:
            raise UsageError(_unknown(algorithm, key, list(known)))
        *parents, last = key.split(".")
        part = data
        for parent in parents:
            part = part[parent]
        part[last] = _plain(value)
    return config_file.from_json(type(config), data, algorithm)


def flat_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Options by their dotted names; parts of a config are taken apart."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        if isinstance(value, Mapping):
            found.update(flat_options(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found


def _plain(value: Any) -> Any:
    """A value as a config has it; NumPy's numbers and arrays become Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def _unknown(algorithm: str, key: str, known: list[str]) -> str:
    """What to say of an option that does not exist."""
    own = [name for name in known if not name.startswith("env.")]
    candidates = [*own, *_ARGUMENTS, *{name.split(".")[0] for name in own}]
    if key.startswith("env."):
        candidates = own = [name for name in known if name.startswith("env.")]
    # Somebody may know the name of a field and not which part it belongs to.
    last = key.split(".")[-1]
    elsewhere = [name for name in own if name.split(".")[-1] == last]
    near = elsewhere or difflib.get_close_matches(key, candidates, n=1, cutoff=0.65)
    hint = f" (did you mean {' or '.join(near[:3])}?)" if near else ""
    return (
        f"{algorithm} has no option {key!r}{hint}; it has "
        f"{', '.join(sorted({name.split('.')[0] for name in own}))}, and "
        f"{find(algorithm).config} lists the fields of each part."
    )


def make(name: str, task: Task, config: Any) -> "Algorithm[Any]":
    """An algorithm ready to learn."""
    algorithm: Algorithm[Any] = learner_type(name)(task, config, name)
    return algorithm


def learner_type(name: str) -> type[Any]:
    """The class of an algorithm's learner."""
    module = importlib.import_module(f"{find(name).package}.learner")
    learner: type[Any] = module.Learner
    return learner


def able_to(method: str) -> list[str]:
    """The algorithms whose learner has a method, such as `update` or `explore`."""
    return [name for name in ALGORITHMS if hasattr(learner_type(name), method)]


def begin_from(
    algorithm: "Algorithm[Any]", seed: int, logged: Sequence[Episode]
) -> "tuple[Any, EpisodeStore]":
    """A state that has learned from logged episodes before its first real step.

    They do not count as real steps of the run, whose budget is for steps yet to come.

    Raises:
        UsageError: The algorithm learns only from episodes of its own.
    """
    # Imported here, so that a list of algorithms needs no JAX.
    import equinox as eqx

    from pombu.data.episodes import EpisodeStore
    from pombu.training.algorithm import StageTimer, Updatable
    from pombu.training.metrics import require_finite

    if not isinstance(algorithm, Updatable):
        raise UsageError(
            f"{algorithm.name} cannot start from logged data: choose "
            f"{', '.join(able_to('update'))}, or leave the data out."
        )
    episodes = EpisodeStore(logged)
    state, metrics = algorithm.update(
        algorithm.init(seed), episodes, list(logged), StageTimer()
    )
    require_finite(metrics, int(state.iteration))
    # What counts the real steps that were learned from counts from here on as well.
    counters = [n for n in ("real_steps", "learned_steps") if hasattr(state, n)]
    return (
        eqx.tree_at(
            lambda s: [getattr(s, name) for name in counters],
            state,
            [np.asarray(0) for _ in counters],
        ),
        episodes,
    )


def require_offline(name: str) -> None:
    """Refuse an algorithm that cannot learn from stored episodes alone.

    Raises:
        UsageError: Names those that can.
    """
    if not hasattr(learner_type(name), "offline"):
        raise UsageError(
            f"{name} cannot learn from data alone: choose "
            f"{', '.join(able_to('offline'))}, or leave --offline out."
        )
