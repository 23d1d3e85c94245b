"""`pombu train`: learn a policy, and keep everything about it in a run folder."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from pombu import presets
from pombu.algorithms import registry
from pombu.cli import parsing
from pombu.cli.briefing import brief
from pombu.cli.training import announce, finish, watchers
from pombu.config.budget import budget
from pombu.data import read_logged
from pombu.envs import EnvConfig, NoiseKind, load, resolve, short_name
from pombu.errors import UsageError
from pombu.files import safe_name
from pombu.training import config_file
from pombu.training.algorithm import begin_from
from pombu.training.loop import learn
from pombu.training.run import RunSpec, create, require_free

C = TypeVar("C")
ENV, ALGORITHM, PRESET = "HalfCheetah", "pombu", "fast"


@dataclasses.dataclass(frozen=True)
class Command(Generic[C]):
    """Train a policy, and keep everything about it in a run folder.

    The preset gives every value of the config; each can be overridden by its flag.
    Press Ctrl-C to stop: the run is saved and `pombu resume` goes on with it, bit for
    bit.

    Examples:
      pombu train --env HalfCheetah --preset fast --seed 0 --out runs/cheetah
      pombu train --env Point2D --preset smoke
      pombu train --env Ant --alive-bonus 1 --alpha 0.75 --model.members 3
      pombu train --env Pendulum-v1
      pombu train --env my_module:make_env --total-steps 20000 --tensorboard
      pombu train --env my_module:make_env --data logged.npz
    """

    config: Annotated[C, tyro.conf.arg(name="")]
    algo: str = ALGORITHM
    """The algorithm."""
    preset: str = PRESET
    """Where the config's values come from; `pombu presets` lists them."""
    seed: int = 0
    """The same seed gives the same run."""
    total_steps: int | None = None
    """Real steps to take, and what is left of the iteration that reaches them; None
    takes as many as the preset plans."""
    out: Path | None = None
    """A new run folder; None names it after the task under runs/."""
    horizon: int | None = None
    """Steps after which an episode is cut off; None keeps the task's own limit."""
    observation_noise: float | None = None
    """Size of the noise added to observations: a standard deviation, or a bound."""
    noise_kind: NoiseKind | None = None
    """`gaussian` on every observation, as in the paper's text, or `uniform` on all but
    the first, as in its code."""
    history: int | None = None
    """Observations that model and policy see: the present one and those before it."""
    alive_bonus: float | None = None
    """Constant added to each step's reward of a pombu task."""
    observe_y: bool = True
    """Whether Ant observes its y position, as in the paper; the published code's Ant
    does not."""
    data: Path | None = None
    """Logged transitions (.npz), or another run's folder, to learn from before the
    first real step."""
    check: bool = True
    """Look at an environment that is not pombu's for a moment before training in it."""
    checkpoint_every: int = 1
    """Iterations between checkpoints."""
    keep_checkpoints: int = 3
    """Checkpoints to keep, beside the best one."""
    target_return: float | None = None
    """Stop once the mean real return reaches this value."""
    max_minutes: float | None = None
    """Stop after the iteration in which this much time has passed."""
    tensorboard: bool = False
    """Write TensorBoard events into the run folder."""
    wandb: bool = False
    """Send metrics to Weights & Biases."""
    json: bool = False
    """Print one JSON object at the end; progress goes to standard error."""

    def run(self) -> int:
        """Train to the end or until stopped."""
        config: Any = self.config
        config = dataclasses.replace(config, env=self._environment(config.env))
        out = self.out or self._folder(config.env)
        require_free(out)
        console = announce(f"Preparing {self.algo} on {config.env.id}.", self.json)
        task = load(config.env)
        algorithm = registry.make(self.algo, task, config)
        spec = RunSpec(
            algorithm=self.algo,
            preset=self.preset,
            seed=self.seed,
            total_steps=budget(config, lambda: task.horizon, self.total_steps),
            config=config_file.to_json(config),
            checkpoint_every=self.checkpoint_every,
            keep_checkpoints=self.keep_checkpoints,
            tensorboard=self.tensorboard,
            wandb=self.wandb,
        )
        callbacks = watchers(console, spec, self.target_return, self.max_minutes)
        logged = None if self.data is None else read_logged(self.data, task)
        for line in brief(task, config) if self.check else ():
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        begin = None if logged is None else begin_from(algorithm, spec.seed, logged)
        run = create(out, spec)
        result = learn(algorithm, spec.seed, spec.total_steps, callbacks, run, begin)
        return finish(run, result, self.json)

    def _environment(self, env: EnvConfig) -> EnvConfig:
        given: dict[str, Any] = {
            "horizon": self.horizon,
            "observation_noise": self.observation_noise,
            "noise_kind": self.noise_kind,
            "history": self.history,
            "alive_bonus": self.alive_bonus,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if not self.observe_y:
            changes["observe_y"] = False
        return dataclasses.replace(env, id=resolve(env.id), **changes)

    def _folder(self, env: EnvConfig) -> Path:
        safe = safe_name(short_name(env.id))
        return Path("runs") / f"{safe}-{self.algo}-{self.preset}-seed{self.seed}"


def parse(arguments: Sequence[str]) -> Command[Any]:
    """Read the flags; those that choose the preset first, for it gives the defaults."""
    if not arguments:
        raise UsageError(
            "what to train is not said: name an environment, as in "
            f"`pombu train --env {ENV}`; `pombu envs` lists them, and "
            "`pombu train --help` the options."
        )
    env = last_value(arguments, "--env") or ENV
    algo = last_value(arguments, "--algo") or ALGORITHM
    preset = last_value(arguments, "--preset") or PRESET
    horizon = last_value(arguments, "--horizon") or ""
    registry.find(algo)
    steps = int(horizon) if horizon.isdecimal() and int(horizon) > 0 else None
    config = presets.preset(algo, preset, resolve(env), steps)
    refuse_foreign_options(arguments, algo)
    # The flags are the fields of this algorithm's config, known only now.
    command: Any = Command[type(config)]
    parsed: Command[Any] = parsing.parse(
        command,
        "train",
        arguments,
        default=Command(config, algo, preset),
        registry=environments_by_name(config.env),
    )
    return parsed


def refuse_foreign_options(arguments: Sequence[str], algo: str) -> None:
    """Refuse an option that only other algorithms have, and list this one's."""
    own = registry.options(algo)
    others = {name for other in registry.ALGORITHMS for name in registry.options(other)}
    for argument in arguments:
        flag = argument.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name in others and name not in own:
            listed = ", ".join(f"--{one.replace('_', '-')}" for one in own)
            raise UsageError(f"{algo} has no option {flag}; it has {listed}.")


def last_value(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag, as `--flag value` or `--flag=value`; the last one counts."""
    found = None
    for position, argument in enumerate(arguments):
        if argument == flag and position + 1 < len(arguments):
            found = arguments[position + 1]
        elif argument.startswith(f"{flag}="):
            found = argument.removeprefix(f"{flag}=")
    return found


def environments_by_name(
    default: EnvConfig,
) -> tyro.constructors.ConstructorRegistry:
    """Lets `--env NAME` stand for a config's environment, with the preset's options."""
    rules = tyro.constructors.ConstructorRegistry()

    @rules.primitive_rule
    def _(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec[EnvConfig] | None:
        if info.type is not EnvConfig:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="ENV",
            instance_from_str=lambda given: dataclasses.replace(default, id=given[0]),
            is_instance=lambda value: isinstance(value, EnvConfig),
            str_from_instance=lambda env: [env.id],
        )

    return rules
