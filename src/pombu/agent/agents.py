"""Agents: every algorithm as a class with the methods of Stable-Baselines3.

```python
agent = POMBU("HalfCheetah", seed=0).learn(total_timesteps=20_000)
action, _ = agent.predict(observation, deterministic=True)
agent.save("cheetah")
agent = POMBU.load("cheetah")
```

An agent holds a learner and its state. Saving writes a run folder, so `load` also takes
the folder of any `pombu train`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

import gymnasium
import numpy as np
from jaxtyping import PRNGKeyArray

from pombu.agent.ask_tell import AskTell
from pombu.agent.export import about_policy, export_policy
from pombu.agent.runs import (
    DEFAULT_PRESET,
    Which,
    algorithm_of,
    load_run,
    read_config,
    require_later,
)
from pombu.agent.world_model import MOST_STEPS, ModelAccess, UncertaintyAccess, whole
from pombu.algorithms import registry
from pombu.algorithms.config import budget, last_iteration
from pombu.algorithms.registry import with_options
from pombu.data import read_logged
from pombu.data.episodes import EpisodeStore
from pombu.envs import EnvConfig, load, short_name
from pombu.envs.catalogue import HERE
from pombu.envs.collection import time_limit_warning
from pombu.envs.task import config_of
from pombu.errors import UsageError, require_seed
from pombu.files import as_path
from pombu.parallel import use_compilation_cache
from pombu.rng import Keys
from pombu.training import checkpoint as checkpoints
from pombu.training import config_file
from pombu.training.algorithm import (
    FINAL_EPISODES,
    Algorithm,
    Policy,
    usual_share,
)
from pombu.training.callbacks import (
    Callback,
    CallbackLike,
    Progress,
    as_callbacks,
    stop_error,
)
from pombu.training.display import TensorBoard, WeightsAndBiases, display
from pombu.training.loop import Evaluation, evaluate, identity, learn
from pombu.training.run import CONFIG, RunSpec, create, open_run

A = TypeVar("A", bound="Agent")


class Agent(ModelAccess, AskTell):
    """What all agents share; use one of the classes named after an algorithm."""

    algorithm: ClassVar[str]

    def __init__(
        self,
        env: str
        | EnvConfig
        | Callable[..., Any]
        | gymnasium.Env[Any, Any]
        | None = None,
        preset: str = "fast",
        seed: int = 0,
        config: Any = None,
        data: str | Path | None = None,
        tensorboard_log: str | Path | None = None,
        **options: Any,
    ) -> None:
        """Make an untrained agent.

        Args:
            env: a task of pombu, a Gymnasium id, `module:factory`, any function or
                class that makes an environment, an environment itself, of which copies
                are used, or an `EnvConfig`; None takes the config's, or HalfCheetah.
            preset: where values come from that are not given; see `pombu presets`.
            seed: the same seed gives the same run.
            config: a whole config instead of a preset's.
            data: logged transitions, or another run's folder, to learn from first; see
                `pombu.data.logged`.
            tensorboard_log: a folder for TensorBoard's events of every `learn`.
            **options: fields of the config to change: `alpha=0.75`,
                `policy={"hidden": (256, 256)}` or `**{"policy.hidden": (256, 256)}`.
        """
        use_compilation_cache()
        require_seed(seed)
        environment = config_of("HalfCheetah" if env is None else env)
        if config is not None:
            registry.require_config(self.algorithm, config)
            config = config if env is None else replace(config, env=environment)
        else:
            config = registry.preset(
                self.algorithm, preset, environment.id, environment.horizon
            )
            config = replace(config, env=replace(environment, id=config.env.id))
        config = with_options(self.algorithm, config, options)
        learner = registry.make(self.algorithm, load(config.env), config)
        if data is None:
            state, episodes = learner.init(seed), EpisodeStore()
        else:
            source = as_path("data", data)
            known = checkpoints.shard_checksums(source)
            logged = read_logged(source, learner.task, known)
            state, episodes = registry.begin_from(learner, seed, logged)
        self._hold(learner, state, episodes, seed, preset, tensorboard_log)

    @classmethod
    def from_config(
        cls: type[A],
        path: str | Path,
        env: str | Callable[..., Any] | gymnasium.Env[Any, Any] | None = None,
        **options: Any,
    ) -> A:
        """Make an untrained agent as a config file says.

        `learn()` without a number of steps then does what `pombu train --config` does.

        Args:
            path: TOML or JSON, such as a run's config.json, or a run folder.
            env: another environment, or the same again where it is code.
            **options: what the class takes beside, such as `seed`, and options of the
                algorithm; they win over the file.
        """
        file = read_config(path)
        algorithm = file.settings.get("algorithm", cls.algorithm)
        if algorithm != cls.algorithm:
            raise UsageError(
                f"{file.path} is about {algorithm}, not {cls.algorithm}: use the class "
                "of that name."
            )
        preset = file.settings.get("preset", DEFAULT_PRESET)
        name = None if env is None else config_of(env).id
        config = file.config(cls.algorithm, preset, name)
        options = {"seed": file.settings.get("seed", 0), **options}
        agent = cls(preset=preset, config=config, **options)
        agent._asked = file.settings
        return agent

    def _hold(
        self,
        learner: Algorithm[Any],
        state: Any,
        episodes: EpisodeStore,
        seed: int,
        preset: str,
        tensorboard_log: str | Path | None = None,
    ) -> None:
        self.learner = learner
        self.state = state
        self.episodes = episodes
        self.seed = seed
        self._preset = preset
        self.history: list[dict[str, float]] = []
        """One row of metrics per iteration, as in `metrics.csv`."""
        self._acted = 0
        self._explored: Any = None
        self._acting: tuple[Any, Policy] | None = None
        self._tensorboard_log = tensorboard_log
        self._told: set[str] = set()
        self._asked: Mapping[str, Any] = {}
        """Fields of the run's `RunSpec` that a config file names."""

    @property
    def real_steps(self) -> int:
        """Steps taken in the real environment to learn from."""
        return int(self.state.real_steps)

    def __repr__(self) -> str:
        name = short_name(self.learner.task.config.id)
        return (
            f"{type(self).__name__}({name!r}, preset={self._preset!r}, "
            f"seed={self.seed}): {self.real_steps:,} real steps in "
            f"{int(self.state.iteration)} iterations"
        )

    def learn(
        self: A,
        total_timesteps: int | None = None,
        callback: CallbackLike | Sequence[CallbackLike] | None = None,
        callbacks: CallbackLike | Sequence[CallbackLike] | None = None,
        out: str | Path | None = None,
        progress_bar: bool = False,
    ) -> A:
        """Train for `total_timesteps` more real steps (None: as the preset plans).

        With `out`, metrics and checkpoints go to a new run folder there; with
        `progress_bar` the terminal shows how it goes. `callback` and `callbacks` mean
        the same: one `Callback` or several, or functions that are called with a
        `Progress` after every iteration and stop the run by returning False.

        Raises:
            UsageError: The steps are no whole number above 0, or a callback is none.
            KeyboardInterrupt: Ctrl-C was pressed. The iterations before it are kept.
            StoppedError: Another signal asked to stop. They are kept as well.
        """
        horizon = self.learner.task.horizon
        end = None
        if total_timesteps is None:
            total_timesteps = self._asked.get("total_steps")
            last = last_iteration(self.config, self._preset, total_timesteps)
            last = self._asked.get("last_iteration") or last
            end = None if last is None else int(self.state.iteration) + last
            total_timesteps = budget(self.config, lambda: horizon, total_timesteps)
        total_timesteps = whole("total_timesteps", total_timesteps, 1, MOST_STEPS)
        before = int(self.state.real_steps)
        budget(self.config, lambda: horizon, before + total_timesteps)
        self._learn_from_waiting()
        target = int(self.state.real_steps) + total_timesteps
        given = [*as_callbacks(callback), *as_callbacks(callbacks)]
        self._go_on(target, given, out, progress_bar, end)
        return self

    def learn_offline(
        self: A,
        iterations: int | None = None,
        callback: CallbackLike | Sequence[CallbackLike] | None = None,
        out: str | Path | None = None,
        progress_bar: bool = False,
        evaluate: bool = True,
    ) -> A:
        """Improve the policy from the data it has, without a real step to learn from.

        Give the agent `data=` when it is made. sqrt(U) is the guard: `alpha` (POMBU) or
        `kappa` (DHMBPO) above 0 keep the policy from what members disagree about.

        Args:
            iterations: how many; None takes the config's number.
            callback: as in `learn`.
            out: a new run folder for metrics and checkpoints.
            progress_bar: whether the terminal shows how it goes.
            evaluate: whether real episodes measure the policy; without, the environment
                is never acted in.

        Raises:
            UsageError: There are no data, or the algorithm cannot do with them alone.
        """
        registry.require_offline(self.algorithm)
        if not len(self.episodes):
            raise UsageError(
                "There are no data to learn from: make the agent with data=, or learn "
                "from real steps first."
            )
        planned = self.config.iterations if iterations is None else iterations
        until = int(self.state.iteration) + whole("iterations", planned, 1, MOST_STEPS)
        given = as_callbacks(callback)
        self._go_on(self.real_steps, given, out, progress_bar, None, until, evaluate)
        return self

    def _go_on(
        self,
        target: int,
        callbacks: Sequence[Callback],
        out: str | Path | None,
        progress_bar: bool,
        end: int | None = None,
        offline: int = 0,
        evaluate: bool = True,
    ) -> None:
        """Learn until `target` real steps or iteration `end`, and keep what it gave."""
        run, spec = None, self._spec(target, end, offline, evaluate)
        if out is not None:
            self._warn_if_unnamed()
            run = create(as_path("out", out), spec)
        all_callbacks: list[Callback] = [_KeepState(self, end)]
        if progress_bar:
            all_callbacks.append(display())
        if self._tensorboard_log is not None:
            all_callbacks.append(TensorBoard(Path(self._tensorboard_log)))
        elif run is not None and run.spec.tensorboard:
            all_callbacks.append(TensorBoard())
        if self._asked.get("wandb"):
            all_callbacks.append(WeightsAndBiases())
        all_callbacks += callbacks
        self._explored = None
        result = learn(
            self.learner,
            self.seed,
            target,
            all_callbacks,
            run,
            (self.state, self.episodes),
            spec.evaluation_share,
            offline,
            evaluate,
        )
        self.state, self.episodes = result.state, result.episodes
        if not progress_bar:  # which shows it
            self._warn_once(time_limit_warning(self.learner.task, list(self.episodes)))
        if result.signal is not None and not result.finished:
            raise stop_error(result.signal)

    def predict(
        self,
        observation: Any,
        state: None = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, None]:
        """The action for one observation or a batch, in the environment's own units.

        The arguments are those of Stable-Baselines3, whose `evaluate_policy` takes
        agents of pombu. The second value is None: policies here keep no memory, so
        `state` and `episode_start` do not matter.
        """
        rows, single = self._rows(observation)
        key = Keys(self.seed, self._acted).jax("predict")
        self._acted += 1
        actions = self._act(rows, deterministic, key)
        return (np.asarray(actions[0]) if single else actions), None

    def _act(
        self, rows: np.ndarray, deterministic: bool, key: PRNGKeyArray
    ) -> np.ndarray:
        """Actions for rows of observations, in the environment's shape and units."""
        box = self.learner.task.action_box
        drawn = np.asarray(self._policy()(rows, deterministic, key))
        return box.to_env(box.to_box(drawn))

    def evaluate(
        self, episodes: int = FINAL_EPISODES, seed: int = 0, deterministic: bool = True
    ) -> Evaluation:
        """Returns of real episodes, which are neither learned from nor counted.

        The same arguments give the same episodes; `.mean`, `.std`, `.returns` and
        `.lengths` tell what they came to.
        """
        policy = self._policy()
        return evaluate(self.learner.task, policy, episodes, seed, deterministic)

    def save(self, path: str | Path) -> Path:
        """Write everything to a folder; one that holds a save of it gets one more.

        Raises:
            UsageError: The folder holds another agent, or a later save.
        """
        path = as_path("path", path)
        self._warn_if_unnamed()
        spec = self._spec(max(int(self.state.real_steps), 1))
        run = open_run(path) if (path / CONFIG).exists() else create(path, spec)
        run.require_same(spec)
        with run.locked():
            require_later(run, int(self.state.iteration), self.episodes)
            run.record_observation(self.learner.task.observation_parts)
            run.record_task(self.learner.task.described)
            return checkpoints.save(
                run.path,
                self.state,
                self.episodes,
                identity(self.learner, run),
                int(self.state.iteration),
            )

    def export(self, path: str | Path) -> Path:
        """Write the policy as a file that needs no JAX; one of that name gives way.

        Args:
            path: `policy.safetensors`, to be read with NumPy by
                `pombu.agent.numpy_policy.load_policy`, or `policy.onnx` for ONNX
                runtimes (extra `onnx`).

        Raises:
            UsageError: The algorithm has no policy network that can be exported.
            RunError: The policy has numbers that are not finite.
        """
        about = about_policy(self.learner, self.state, self.seed)
        export_policy(Path(path), self.learner, self.state, about)
        return Path(path)

    def _warn_if_unnamed(self) -> None:
        """Say that the command line cannot go on with what has no name."""
        if self.learner.task.config.id.startswith((HERE, "__main__:")):
            self._warn_once(
                "The environment has no name in a module: what is saved can be loaded "
                "with load(path, env=...) in Python, not by `pombu` commands."
            )

    def _warn_once(self, message: str | None) -> None:
        if message is not None and message not in self._told:
            self._told.add(message)
            warnings.warn(message, stacklevel=4)

    @classmethod
    def load(
        cls: type[A],
        path: str | Path,
        env: str | Callable[..., Any] | gymnasium.Env[Any, Any] | None = None,
        checkpoint: Which = "last",
    ) -> A:
        """Read back what `save` or `pombu train` wrote.

        Args:
            path: the folder.
            env: the environment again, where it is code: `module:factory`, or what the
                agent was made with. A file must not be able to run code by itself.
            checkpoint: `last`, or `best`: the one with the highest mean return.
        """
        use_compilation_cache()
        run = open_run(as_path("path", path))
        if run.spec.algorithm != cls.algorithm:
            raise UsageError(
                f"{run.path} was trained by {run.spec.algorithm}, not "
                f"{cls.algorithm}: load it with the class of that name."
            )
        learner = algorithm_of(run, None if env is None else config_of(env).id)
        if checkpoint not in get_args(Which):
            raise UsageError(
                f"checkpoint is {checkpoint!r}: it must be 'last' or 'best'."
            )
        found = load_run(run, learner, checkpoint, partial(warnings.warn, stacklevel=3))
        if found is None:
            raise UsageError(f"{run.path} has no checkpoint: train or save first.")
        loaded, episodes = found
        agent = cls.__new__(cls)
        agent._hold(learner, loaded.state, episodes, run.spec.seed, run.spec.preset)
        agent.history = [
            row for row in run.rows() if row["iteration"] <= loaded.manifest.iteration
        ]
        return agent

    def _spec(
        self,
        total_steps: int,
        last_iteration: int | None = None,
        offline: int = 0,
        evaluate: bool = True,
    ) -> RunSpec:
        usual = {"evaluation_share": usual_share(self.learner.task)}
        own = {
            "algorithm": self.algorithm,
            "preset": self._preset,
            "seed": self.seed,
            "total_steps": total_steps,
            "config": config_file.to_json(self.config),
            "last_iteration": last_iteration,
            "offline": offline,
            "evaluate": evaluate,
        }
        return RunSpec(**{**usual, **self._asked, **own})


class _KeepState(Callback):
    """Gives the agent each iteration's state, so that a later fault loses none; ends
    with the last iteration, where there is one."""

    def __init__(self, agent: Agent, end: int | None = None) -> None:
        self._agent = agent
        self._end = end

    def on_iteration(self, progress: Progress) -> bool:
        self._agent.state = progress.state
        self._agent.history.append(dict(progress.metrics))
        return self._end is None or progress.iteration < self._end


class _WithEnsemble(UncertaintyAccess, Agent):
    """Agents whose ensemble tells how uncertain a Q-value is."""


def agent_class(algorithm: str) -> type[Agent]:
    """The agent class of a registered algorithm."""
    entry = registry.find(algorithm)
    base = _WithEnsemble if entry.q_uncertainty else Agent
    own = {"algorithm": algorithm, "__doc__": entry.title, "__module__": __name__}
    return type(entry.agent, (base,), own)


_CLASSES = {entry.agent: name for name, entry in registry.ALGORITHMS.items()}


def __getattr__(name: str) -> Any:
    """`POMBU` and the others: one class for every entry of the registry."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = agent_class(_CLASSES[name])
    return made


def __dir__() -> list[str]:
    return sorted([*globals(), *_CLASSES])
