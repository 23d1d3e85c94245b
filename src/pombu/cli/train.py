"""`pombu train` and `resume`: learn a policy, and keep everything in a run folder."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro
from rich.console import Console

from pombu.agent.runs import (
    DEFAULT_ALGORITHM,
    DEFAULT_ENV,
    DEFAULT_PRESET,
    ConfigFile,
    algorithm_of,
    config_toml,
    read_config,
)
from pombu.algorithms import registry
from pombu.algorithms.config import budget, last_iteration
from pombu.cli import parsing
from pombu.cli.lists import check_and_describe, describe_guard
from pombu.cli.parsing import ENV_OPTIONS, EnvOptions
from pombu.data import read_logged
from pombu.data.episodes import EpisodeStore
from pombu.envs import EnvConfig, Task, load, resolve, short_name
from pombu.errors import UsageError
from pombu.files import safe_name
from pombu.parallel import usable_cores
from pombu.studies.backends import claimed_cores
from pombu.training import checkpoint, config_file
from pombu.training.algorithm import usual_share
from pombu.training.callbacks import Callback, StopAfter, StopAtReturn
from pombu.training.display import TensorBoard, WeightsAndBiases, display
from pombu.training.loop import Result, learn
from pombu.training.run import Run, RunSpec, create, open_run, require_free

C = TypeVar("C")
Evaluations = Literal["usual", "none"]


@dataclasses.dataclass(frozen=True)
class Train(Generic[C]):
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
      pombu train --env my_module:make_env --data logged.npz --offline --alpha 2
      pombu train --env Ant --alpha 0.75 --print-config > run.toml
      pombu train --config run.toml --seed 1
    """

    config: Annotated[C, tyro.conf.arg(name="")]
    file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """A config file, TOML or JSON: a run's config.json, or what `--print-config`
    wrote. Flags win over it."""
    print_config: bool = False
    """Print every value as TOML for `--config`, and train nothing."""
    algo: str = DEFAULT_ALGORITHM
    """The algorithm."""
    preset: str = DEFAULT_PRESET
    """Where the config's values come from; `pombu presets` lists them."""
    seed: int = 0
    """The same seed gives the same run."""
    total_steps: int | None = None
    """Real steps to learn from, and what is left of the iteration that reaches them;
    None takes as many as the preset plans. Those of evaluations are not counted."""
    evaluation_share: float | None = None
    """Evaluation steps per real step; evaluation steps are not counted as real steps.
    A small share makes evaluations smaller and then rarer, down to one episode with
    and one without noise in every fifth iteration; 0 evaluates at the end alone, inf
    sets no limit. None is 0.2 where episodes are longer than 200 steps, except in
    pombu's own tasks, and no limit elsewhere."""
    out: Path | None = None
    """A new run folder; None names it after the task under runs/."""
    options: Annotated[EnvOptions, tyro.conf.arg(name="")] = ENV_OPTIONS
    data: str | None = None
    """Logged transitions to learn from before the first real step: an .npz file,
    another run's folder, or minari:NAME for a Minari dataset on this machine."""
    offline: bool = False
    """Learn from --data alone, for as many --iterations as there are; real steps follow
    only where --total-steps names some, or `pombu resume --total-steps` does later."""
    evaluate: Evaluations = "usual"
    """`none` never measures the policy in the real environment, not at the end either:
    with --offline no action is taken there at all."""
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
    last_iteration: tyro.conf.Suppress[int | None] = None
    """Not a flag: the last iteration that a config file names."""

    def run(self) -> int:
        """Train to the end or until stopped."""
        config: Any = self.config
        config = dataclasses.replace(config, env=self.environment)
        if self.print_config:
            print(config_toml(self.spec(load(config.env), config)), end="")
            return 0
        out = self.out or self._folder(config.env)
        require_free(out)
        self._offline_iterations(config)
        console = _announce(f"Preparing {self.algo} on {config.env.id}.", self.json)
        task = load(config.env)
        algorithm = registry.make(self.algo, task, config)
        spec = self.spec(task, config)
        callbacks = _callbacks_of(console, spec, self.target_return, self.max_minutes)
        logged = None
        if self.data is not None:
            known = checkpoint.shard_checksums(self.data)
            logged = read_logged(self.data, task, known)
        share = spec.evaluation_share if spec.evaluate else 0.0
        # The check takes real steps.
        untouched = spec.offline and not (spec.total_steps or spec.evaluate)
        check = self.check and not untouched
        lines = check_and_describe(task, config, share) if check else []
        if spec.offline:
            lines.append(describe_guard(self.algo, config))
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        begin: Any = None
        if logged is not None and spec.offline:
            begin = algorithm.init(spec.seed), EpisodeStore(logged)
        elif logged is not None:
            begin = registry.begin_from(algorithm, spec.seed, logged)
        run = create(out, spec)
        result = learn(algorithm, spec.seed, spec.total_steps, callbacks, run, begin)
        return _print_result(run, result, self.json)

    def spec(self, task: Task, config: Any) -> RunSpec:
        """What the run folder will say."""
        last = last_iteration(config, self.preset, self.total_steps)
        offline, steps = self._offline_iterations(config), 0
        if not offline or self.total_steps:
            steps = budget(config, lambda: task.horizon, self.total_steps)
        return RunSpec(
            algorithm=self.algo,
            preset=self.preset,
            seed=self.seed,
            total_steps=steps,
            config=config_file.to_json(config),
            checkpoint_every=self.checkpoint_every,
            keep_checkpoints=self.keep_checkpoints,
            tensorboard=self.tensorboard,
            wandb=self.wandb,
            evaluation_share=_share_of(self.evaluation_share, usual_share(task)),
            last_iteration=self.last_iteration or last,
            offline=offline,
            evaluate=self.evaluate != "none",
        )

    @property
    def environment(self) -> EnvConfig:
        """The environment with every option that was given."""
        config: Any = self.config
        return self.options.of(resolve(config.env.id))

    def _offline_iterations(self, config: Any) -> int:
        """How many iterations learn from the data alone."""
        if not self.offline:
            return 0
        if self.data is None:
            raise UsageError(
                "--offline learns from data alone and there are none: name them by "
                "--data."
            )
        registry.require_offline(self.algo)
        return int(config.iterations)

    def _folder(self, env: EnvConfig) -> Path:
        safe = safe_name(short_name(env.id))
        return Path("runs") / f"{safe}-{self.algo}-{self.preset}-seed{self.seed}"


def parse_train(arguments: Sequence[str]) -> Train[Any]:
    """Read the flags; those that choose the preset first, for it gives the defaults."""
    if not arguments:
        raise UsageError(
            "what to train is not said: name an environment, as in "
            f"`pombu train --env {DEFAULT_ENV}`; `pombu envs` lists them, and "
            "`pombu train --help` the options."
        )
    env, horizon = (last_value(arguments, flag) for flag in ("--env", "--horizon"))
    steps = int(horizon) if horizon and horizon.isdecimal() and int(horizon) else None
    named: dict[str, Any] = {}
    path = last_value(arguments, "--config")
    asked = None if path is None else read_config(path)
    if asked is not None:
        named = _settings_of(asked, arguments)
    algo = named.pop("algorithm", DEFAULT_ALGORITHM)
    algo = last_value(arguments, "--algo") or algo
    preset = last_value(arguments, "--preset") or named.get("preset", DEFAULT_PRESET)
    named.update(algo=algo, preset=preset)
    registry.find(algo)
    if asked is None:
        config = registry.preset(algo, preset, resolve(env or DEFAULT_ENV), steps)
    else:
        config = asked.config(algo, preset, env, steps)
    _refuse_foreign_options(arguments, algo)
    # The flags are the fields of this algorithm's config, known only now.
    command: Any = Train[type(config)]
    parsed: Train[Any] = parsing.parse(
        command,
        "train",
        arguments,
        default=Train(config, options=EnvOptions(**vars(config.env)), **named),
        registry=_environments_by_name(config.env),
    )
    return parsed


def _settings_of(file: ConfigFile, arguments: Sequence[str]) -> dict[str, Any]:
    """What a config file says of a run beside its config, where no flag differs.

    Raises:
        UsageError: A preset is asked for that has nothing left to give.
    """
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    named = dict(file.settings)
    if file.is_whole and "--preset" in given:
        raise UsageError(
            f"--preset changes nothing, because {file.path} has every value: leave "
            "the flag out, or remove from the file what the preset is to give, and "
            "its `format`."
        )
    if "--iterations" in given:  # a new plan, from which the steps follow
        named.pop("total_steps", None)
    if given & {"--iterations", "--total-steps"}:
        named.pop("last_iteration", None)
    if "offline" in named:  # as many as the config's iterations
        named["offline"] = named["offline"] > 0
    if "evaluate" in named:
        named["evaluate"] = "usual" if named["evaluate"] else "none"
    if "evaluation_share" in named and named["evaluation_share"] is None:
        named["evaluation_share"] = math.inf  # as the flag spells it
    return named


def _refuse_foreign_options(arguments: Sequence[str], algo: str) -> None:
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


def _environments_by_name(
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


def _share_of(asked: float | None, otherwise: float | None) -> float | None:
    """The limit of evaluation as a run keeps it: None is no limit."""
    if asked is None:
        return otherwise
    return None if asked == math.inf else asked


def _announce(text: str, json_output: bool) -> Console:
    """Show a first line before anything is compiled; gives where to show the rest."""
    console = Console(stderr=json_output)
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    return console


def _callbacks_of(
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


def _print_result(run: Run, result: Result[Any], json_output: bool) -> int:
    """Say how a run ended and where everything is; gives the exit code."""
    code = 0 if result.signal is None else 128 + result.signal
    evaluation = None
    if result.finished and run.spec.evaluate:
        evaluation = run.evaluation()
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
    if result.finished and evaluation is None:
        print(
            f"Done after {int(result.state.iteration)} iterations, without a "
            f"measurement in the real environment. Everything is in {run.path}."
        )
        print(_next_after_offline(run))
    elif evaluation is None:
        done = int(result.state.iteration)
        kept = f"{done} finished iterations are" if done != 1 else "1 iteration is"
        print(
            f"Stopped; {kept} saved, and `pombu resume {run.named}` goes on from "
            "there, bit for bit."
        )
    else:
        last = evaluation["deterministic"]
        chance = ""
        if "random" in evaluation:
            chance = f"; a random policy has {evaluation['random']['mean']:.1f}"
        print(
            f"Done: the last policy's return is {last['mean']:.1f} ± {last['std']:.1f} "
            f"over {last['episodes']} episodes without its noise{chance}. Everything "
            f"is in {run.path}."
        )
        spec, steps = run.spec, int(result.state.real_steps)
        if not spec.is_done(int(result.state.iteration), steps):
            print(
                f"It stopped early, after {steps:,} of {spec.total_steps:,} real "
                f"steps: `pombu resume {run.named}` takes the rest."
            )
        print(
            f"Next: pombu report {run.named}, pombu video {run.named}, "
            f"pombu evaluate {run.named} --episodes 100"
        )
        if not spec.total_steps:
            print(_next_after_offline(run))
    return code


def _next_after_offline(run: Run) -> str:
    """What to do with a policy that has not met the environment yet."""
    return (
        f"`pombu diagnose {run.named} --data FILE` compares the learned dynamics with "
        f"logged episodes, and `pombu resume {run.named} --total-steps N` goes on with "
        "real steps."
    )


@contextlib.contextmanager
def cores_as_before(run: Run) -> Iterator[None]:
    """Keep to as many cores as the run had; the last digits may depend on them.

    Where there are fewer now, the loop says so.
    """
    saved = checkpoint.newest(run.path)
    if saved is None or saved.cores is None or saved.cores >= usable_cores():
        yield
        return
    with claimed_cores(saved.cores):
        yield


@dataclasses.dataclass(frozen=True)
class Resume:
    """Go on with an interrupted run from its last good checkpoint.

    The result is the same, bit for bit, as if the run had never been interrupted. A
    run that has no checkpoint yet starts again; one that is finished can be given more
    steps.

    Examples:
      pombu resume runs/cheetah
      pombu resume runs/cheetah --total-steps 300000
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    total_steps: int | None = None
    """Real steps to take in all, more or fewer than before; None keeps the run's own
    number. Those of evaluations are not counted."""
    evaluation_share: float | None = None
    """Evaluation steps per real step from now on, as in `pombu train`; None is the
    run's own, inf sets no limit."""
    evaluate: Evaluations | None = None
    """Whether the policy is measured in the real environment from now on, as in `pombu
    train`; None is the run's own."""
    env: str | None = None
    """Repeat the environment's name where it is `module:factory`, to allow its code."""
    target_return: float | None = None
    """Stop once the mean real return reaches this value."""
    max_minutes: float | None = None
    """Stop after the iteration in which this much time has passed."""
    json: bool = False
    """Print one JSON object at the end; progress goes to standard error."""

    def run(self) -> int:
        """Train to the end or until stopped."""
        run = open_run(self.folder)
        # JAX counts its threads by the cores of the process, once, so none may be used
        # before this process has as many as the run had.
        with cores_as_before(run):
            return self._resume(run)

    def _resume(self, run: Run) -> int:
        console = _announce(f"Preparing to resume {run.path}.", self.json)
        algorithm = algorithm_of(run, self.env)
        if self.total_steps is not None:
            budget(algorithm.config, lambda: algorithm.task.horizon, self.total_steps)
        steps = run.spec.total_steps if self.total_steps is None else self.total_steps
        spec = dataclasses.replace(run.spec, total_steps=steps)
        callbacks = _callbacks_of(console, spec, self.target_return, self.max_minutes)
        share = _share_of(self.evaluation_share, run.spec.evaluation_share)
        if share != run.spec.evaluation_share:
            with run.locked():
                run = run.share_evaluation(share)
        evaluate = (
            run.spec.evaluate if self.evaluate is None else self.evaluate != "none"
        )
        if evaluate != run.spec.evaluate:
            with run.locked():
                run = run.measure(evaluate)
        if self.total_steps is not None:
            with run.locked():
                run = run.extend(self.total_steps)
        result = learn(algorithm, run.spec.seed, run.spec.total_steps, callbacks, run)
        return _print_result(run, result, self.json)
