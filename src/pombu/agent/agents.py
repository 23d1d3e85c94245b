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

import difflib
import signal
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pombu.agent import ask_tell
from pombu.agent.ask_tell import Proposal
from pombu.agent.runs import algorithm_of
from pombu.algorithms import presets, registry
from pombu.algorithms.config import budget
from pombu.algorithms.pombu.learner import Learner, State
from pombu.data import read_logged
from pombu.data.episodes import EPISODES, EpisodeStore
from pombu.envs import EnvConfig, Episode, config_of, load
from pombu.errors import StoppedError, UsageError
from pombu.rng import Keys, require_seed
from pombu.rollout.q_interval import interval, require_calibrated
from pombu.rollout.q_value import QEstimate, q_estimate, q_uncertainty
from pombu.training import checkpoint, config_file
from pombu.training.algorithm import (
    Algorithm,
    Explores,
    Planner,
    Policy,
    StageTimer,
    begin_from,
)
from pombu.training.callbacks import Callback, Progress
from pombu.training.display import display
from pombu.training.loop import identity, learn
from pombu.training.metrics import require_finite
from pombu.training.run import CONFIG, Run, RunSpec, create, open_run

A = TypeVar("A", bound="Agent")


class Agent:
    """What all agents share; use one of the classes named after an algorithm."""

    algorithm: ClassVar[str]

    def __init__(
        self,
        env: str | EnvConfig | Callable[[], Any] | None = None,
        preset: str = "fast",
        seed: int = 0,
        config: Any = None,
        data: str | Path | None = None,
        **changes: Any,
    ) -> None:
        """Make an untrained agent.

        Args:
            env: a task of pombu, a Gymnasium id, `module:factory`, that factory
                itself, or an `EnvConfig`; None takes the config's, or HalfCheetah.
            preset: where values come from that are not given; see `pombu presets`.
            seed: the same seed gives the same run.
            config: a whole config instead of a preset's.
            data: logged transitions, or another run's folder, to learn from first; see
                `pombu.data.logged`.
            **changes: fields of the config to change, such as `alpha=0.75`.
        """
        require_seed(seed)
        environment = config_of("HalfCheetah" if env is None else env)
        if config is not None:
            config = config if env is None else replace(config, env=environment)
        else:
            config = presets.preset(
                self.algorithm, preset, environment.id, environment.horizon
            )
            config = replace(config, env=replace(environment, id=config.env.id))
        unknown = sorted(set(changes) - set(config.__dataclass_fields__))
        if unknown:
            known = ("preset", "seed", "config", "data", *config.__dataclass_fields__)
            near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.65)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(
                f"{self.algorithm} has no option {unknown[0]!r}{hint}; it has "
                f"{', '.join(known)}."
            )
        config = replace(config, **changes)
        learner = registry.make(self.algorithm, load(config.env), config)
        if data is None:
            state, episodes = learner.init(seed), EpisodeStore()
        else:
            logged = read_logged(data, learner.task)
            state, episodes = begin_from(learner, seed, logged)
        self._hold(learner, state, episodes, seed, preset)

    def _hold(
        self,
        learner: Algorithm[Any],
        state: Any,
        episodes: EpisodeStore,
        seed: int,
        preset: str,
    ) -> None:
        self.learner = learner
        self.state = state
        self.episodes = episodes
        self.seed = seed
        self._preset = preset
        self._acted = 0
        self._explored: Any = None
        self._acting: tuple[Any, Policy] | None = None

    @property
    def config(self) -> Any:
        """The resolved config."""
        return self.learner.config

    def learn(
        self: A,
        total_timesteps: int | None = None,
        callbacks: Sequence[Callback] = (),
        out: str | Path | None = None,
        progress_bar: bool = False,
    ) -> A:
        """Train for `total_timesteps` more real steps (None: as the preset plans).

        With `out`, metrics and checkpoints go to a new run folder there; with
        `progress_bar` the terminal shows how it goes.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed. The iterations before it are kept.
            StoppedError: Another signal asked to stop. They are kept as well.
        """
        horizon = self.learner.task.horizon
        if total_timesteps is None:
            total_timesteps = budget(self.config, lambda: horizon)
        before = int(self.state.real_steps)
        budget(self.config, lambda: horizon, before + total_timesteps)
        self._learn_from_waiting()
        target = int(self.state.real_steps) + total_timesteps
        run = create(Path(out), self._spec(target)) if out is not None else None
        begin = (self.state, self.episodes)
        shown = [display()] if progress_bar else []
        all_callbacks = [_KeepState(self), *shown, *callbacks]
        self._explored = None
        result = learn(self.learner, self.seed, target, all_callbacks, run, begin)
        self.state, self.episodes = result.state, result.episodes
        if result.signal is not None and not result.finished:
            raise _stopped(result.signal)
        return self

    def propose(self) -> Proposal:
        """A policy for one real episode outside pombu; tell by `observe` what it did.

        It explores. To act with what was learned, use `predict`.
        """
        learner = ask_tell.explorer(self.learner)
        number = len(self.episodes)
        since = len(ask_tell.waiting(self.state, self.episodes))
        if self._explored is None:
            # Episodes not learned from yet must not change what is proposed next.
            learned = EpisodeStore(list(self.episodes)[: number - since])
            self._explored = learner.explore(self.state, learned)
        _, explorers = self._explored
        key = Keys(self.seed, number).jax("propose")
        return ask_tell.policy_for(explorers, since, self.learner.task, key)

    def observe(self, episode: Episode) -> dict[str, float]:
        """Take in a real episode; learn once an iteration's worth of them is there.

        Returns:
            The lesson's metrics, or nothing while episodes are still being gathered.
        """
        ask_tell.explorer(self.learner)
        self.episodes.append([ask_tell.checked(episode, self.learner.task)])
        waiting = ask_tell.waiting(self.state, self.episodes)
        if not ask_tell.is_round(self.config, waiting):
            return {}
        return self._learn_from_waiting()

    def _learn_from_waiting(self) -> dict[str, float]:
        """Learn from observed episodes that were not learned from yet."""
        if not isinstance(self.learner, Explores):
            return {}
        waiting = ask_tell.waiting(self.state, self.episodes)
        if not waiting:
            return {}
        state, _ = self._explored or (self.state, None)
        state, metrics = self.learner.update(
            state, self.episodes, waiting, StageTimer()
        )
        require_finite(metrics, int(state.iteration))
        self.state, self._explored = state, None
        return metrics

    def predict(
        self, observation: Any, deterministic: bool = True
    ) -> tuple[np.ndarray, None]:
        """The action for one observation or a batch, in the environment's own units.

        The second value is None: policies here keep no memory.
        """
        task = self.learner.task
        rows = as_rows("observation", observation, task.observation_dim)
        alone = {(task.observation_dim,), task.observation_shape, ()}
        single = np.shape(observation) in alone
        key = Keys(self.seed, self._acted).jax("predict")
        self._acted += 1
        drawn = np.asarray(self._policy()(rows, deterministic, key))
        actions = task.action_box.to_env(task.action_box.to_box(drawn))
        return (actions[0] if single else actions), None

    def _policy(self) -> Policy:
        """The policy, made once for as long as the state is the same."""
        if self._acting is None or self._acting[0] is not self.state:
            self._acting = self.state, self.learner.policy(self.state)
        policy = self._acting[1]
        return policy.begin() if isinstance(policy, Planner) else policy

    def save(self, path: str | Path) -> Path:
        """Write everything to a folder; one that holds a save of it gets one more.

        Raises:
            UsageError: The folder holds another agent, or a later save.
        """
        path = Path(path)
        spec = self._spec(max(int(self.state.real_steps), 1))
        run = open_run(path) if (path / CONFIG).exists() else create(path, spec)
        run.require_same(spec)
        with run.locked():
            self._require_later(run)
            return checkpoint.save(
                run.path,
                self.state,
                self.episodes,
                identity(self.learner, run),
                int(self.state.iteration),
            )

    def _require_later(self, run: Run) -> None:
        """Refuse to save over what another agent of the same config went through."""
        saved = checkpoint.newest(run.path)
        if saved is None:
            return
        iteration = int(self.state.iteration)
        if saved.iteration > iteration:
            raise UsageError(
                f"{run.path} holds a save of iteration {saved.iteration}, and this "
                f"agent has only had {iteration}: choose another folder."
            )
        if not self.episodes.go_on_after(run.path / EPISODES, saved.shards):
            raise UsageError(
                f"{run.path} holds an agent with other real episodes: choose another "
                "folder, so that neither of them is lost."
            )

    @classmethod
    def load(
        cls: type[A], path: str | Path, env: str | Callable[[], Any] | None = None
    ) -> A:
        """Read back what `save` or `pombu train` wrote.

        An environment named `module:factory` is code, so its name must be repeated;
        the factory itself will do as well.
        """
        run = open_run(Path(path))
        if run.spec.algorithm != cls.algorithm:
            raise UsageError(
                f"{run.path} was trained by {run.spec.algorithm}, not "
                f"{cls.algorithm}: load it with the class of that name."
            )
        learner = algorithm_of(run, None if env is None else config_of(env).id)
        template = learner.init(run.spec.seed)
        found = checkpoint.load_latest(
            run.path, template, identity(learner, run), _warn
        )
        if found is None:
            raise UsageError(f"{run.path} has no checkpoint: train or save first.")
        loaded, episodes = found
        agent = cls.__new__(cls)
        agent._hold(learner, loaded.state, episodes, run.spec.seed, run.spec.preset)
        return agent

    def _spec(self, total_steps: int) -> RunSpec:
        return RunSpec(
            algorithm=self.algorithm,
            preset=self._preset,
            seed=self.seed,
            total_steps=total_steps,
            config=config_file.to_json(self.config),
        )


class _KeepState(Callback):
    """Gives the agent each iteration's state, so that a later fault loses none."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def on_iteration(self, progress: Progress) -> None:
        self._agent.state = progress.state


def as_rows(name: str, given: Any, dim: int) -> np.ndarray:
    """One row or a batch of rows as [n, dim]."""
    rows = np.asarray(given, np.float32)
    if rows.size == 0 or rows.size % dim:
        raise UsageError(
            f"The {name} has shape {rows.shape}; give one of {dim} entries, or a batch "
            f"[n, {dim}]."
        )
    if not np.isfinite(rows).all():
        raise UsageError(f"The {name} has entries that are not finite.")
    return rows.reshape(-1, dim)


def _stopped(number: int) -> BaseException:
    """What to raise once a signal was heeded and nothing is left to lose."""
    kept = "Stopped; the agent keeps every finished iteration."
    if number == signal.SIGINT:
        return KeyboardInterrupt(kept)
    return StoppedError(kept, number)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


class _WithEnsemble(Agent):
    """Agents whose ensemble tells how uncertain a Q-value is."""

    learner: Learner
    state: State

    def q_uncertainty(
        self, observation: Any, action: Any, rollouts: int = 20
    ) -> np.ndarray:
        """sqrt(U) of Q(s, a) under the current policy, in units of the task's reward.

        It is an array with one number per pair, also where there is only one. Before
        anything was learned it tells how far untrained networks lie apart.

        Args:
            observation: one observation or a batch.
            action: in the environment's own units; clipped to its bounds.
            rollouts: imagined trajectories per pair whose variances are averaged.
        """
        pairs = self._pairs(observation, action, rollouts)
        key = jax.random.key(self.seed)
        return np.asarray(q_uncertainty(*pairs, rollouts, key))

    def q_value(self, observation: Any, action: Any, rollouts: int = 20) -> np.ndarray:
        """Q(s, a) under the current policy: the mean of imagined returns.

        A return is discounted as in training and ends with the episode; it is in units
        of the task's reward. There is one number per pair, NaN where every imagined
        trajectory ran away.

        Args:
            observation: one observation or a batch.
            action: in the environment's own units; clipped to its bounds.
            rollouts: imagined trajectories per pair whose returns are averaged.
        """
        return np.asarray(self._estimate(observation, action, rollouts).q)

    def q_interval(
        self, observation: Any, action: Any, level: float = 0.9, rollouts: int = 20
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of intervals around Q(s, a), corrected by real episodes.

        The correction was fitted in the last evaluation (`calibration.use`). Where
        every imagined trajectory ran away the interval is infinite.

        Args:
            observation: one observation or a batch.
            action: in the environment's own units; clipped to its bounds.
            level: share of true Q-values to hold, in (0, 1).
            rollouts: imagined trajectories per pair.

        Raises:
            UsageError: The agent never saw a held-out episode, its members agree
                entirely, or the level is no share.
        """
        require_calibrated(self.state.calibration)
        found = self._estimate(observation, action, rollouts)
        return interval(found, self.state.calibration, rollouts, level)

    def _estimate(self, observation: Any, action: Any, rollouts: int) -> QEstimate:
        pairs = self._pairs(observation, action, rollouts)
        calibrated = self.state.calibration
        rho = jnp.float32(0.0 if calibrated is None else calibrated.rho)
        return q_estimate(*pairs, rollouts, jax.random.key(self.seed), rho)

    def _pairs(
        self, observation: Any, action: Any, rollouts: int
    ) -> tuple[Any, Any, Any, Any, Any, Any]:
        """What Q-values are imagined with, and the pairs of state and action."""
        task = self.learner.task
        states = as_rows("observation", observation, task.observation_dim)
        actions = as_rows("action", action, task.action_dim)
        if len(states) != len(actions) or rollouts < 1:
            raise UsageError(
                f"There are {len(states)} observations, {len(actions)} actions and "
                f"{rollouts} rollouts: give one action per observation and at least "
                "one rollout."
            )
        if self.config.model.kind != "ensemble":
            raise UsageError(
                "The agent imagines in the simulator, so it has no learned ensemble to "
                "be uncertain: train it with model.kind = ensemble."
            )
        return (
            self.state.policy,
            self.state.value,
            self.learner.dynamics(self.state),
            replace(self.learner.rules, horizon=task.horizon),
            jnp.asarray(states),
            jnp.asarray(task.action_box.clip(actions)),
        )


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
