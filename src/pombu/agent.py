"""The familiar face: agents with Stable-Baselines3's manners over the pure core.

```python
agent = POMBU("HalfCheetah", seed=0).learn(total_timesteps=20_000)
action, _ = agent.predict(observation, deterministic=True)
agent.save("cheetah")
agent = POMBU.load("cheetah")
```

An agent holds a learner and a state and forwards to them. Saving writes a run folder,
so `load` also takes the folder of any `pombu train`.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from pombu import ask_tell, presets
from pombu.algorithms import registry
from pombu.algorithms.pombu import Learner
from pombu.algorithms.pombu import State as POMBUState
from pombu.ask_tell import Proposal
from pombu.config.budget import budget
from pombu.data import read_logged
from pombu.envs import EnvConfig, Episode, config_of, load
from pombu.errors import UsageError
from pombu.estimates import q_uncertainty
from pombu.runs import algorithm_of
from pombu.training import checkpoint, config_file
from pombu.training.algorithm import Algorithm
from pombu.training.callbacks import Callback
from pombu.training.episodes import EpisodeStore
from pombu.training.loop import identity, learn
from pombu.training.outside import Explores, begin_from
from pombu.training.run import CONFIG, RunSpec, create, open_run
from pombu.training.stages import StageTimer

A = TypeVar("A", bound="Agent")


class Agent:
    """What all agents share; use one of the classes named after an algorithm."""

    algorithm: ClassVar[str]

    def __init__(
        self,
        env: str | EnvConfig | Callable[[], Any] = "HalfCheetah",
        preset: str = "fast",
        seed: int = 0,
        config: Any = None,
        data: str | Path | None = None,
        **changes: Any,
    ) -> None:
        """Make an untrained agent.

        Args:
            env: a task of pombu, a Gymnasium id, `module:factory`, that factory
                itself, or an `EnvConfig`.
            preset: where values come from that are not given; see `pombu presets`.
            seed: the same seed gives the same run.
            config: a whole config instead of a preset's.
            data: logged transitions to learn from first; see `pombu.data.logged`.
            **changes: fields of the config to change, such as `alpha=0.75`.
        """
        environment = config_of(env)
        if config is None:
            config = presets.preset(
                self.algorithm, preset, environment.id, environment.horizon
            )
            config = replace(config, env=replace(environment, id=config.env.id))
        unknown = sorted(set(changes) - set(config.__dataclass_fields__))
        if unknown:
            known = ", ".join(config.__dataclass_fields__)
            raise UsageError(
                f"{self.algorithm} has no option {unknown[0]!r}; it has {known}."
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

    @property
    def config(self) -> Any:
        """The resolved config."""
        return self.learner.config

    def learn(
        self: A,
        total_timesteps: int | None = None,
        callbacks: Sequence[Callback] = (),
        out: str | Path | None = None,
    ) -> A:
        """Train for `total_timesteps` more real steps (None: as the preset plans).

        With `out`, metrics and checkpoints go to a new run folder there.
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
        result = learn(self.learner, self.seed, target, callbacks, run, begin)
        self.state, self.episodes = result.state, result.episodes
        self._explored = None
        return self

    def propose(self) -> Proposal:
        """A policy for one real episode outside pombu; tell by `observe` what it did.

        It explores. To act with what was learned, use `predict`.
        """
        learner = ask_tell.explorer(self.learner)
        if self._explored is None:
            self._explored = learner.explore(self.state, self.episodes)
        _, explorers = self._explored
        number = len(self.episodes)
        since = len(ask_tell.waiting(self.state, self.episodes))
        key = jax.random.fold_in(jax.random.key(self.seed), number)
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
        self.state, metrics = self.learner.digest(
            state, self.episodes, waiting, StageTimer()
        )
        self._explored = None
        return metrics

    def predict(
        self, observation: Any, deterministic: bool = True
    ) -> tuple[np.ndarray, None]:
        """The action for one observation or a batch, in the environment's own units.

        The second value is None: policies here keep no memory.
        """
        task = self.learner.task
        rows = _rows("observation", observation, task.observation_dim)
        single = np.asarray(observation).size == task.observation_dim
        key = jax.random.fold_in(jax.random.key(self.seed), self._acted)
        self._acted += 1
        drawn = np.asarray(self.learner.policy(self.state)(rows, deterministic, key))
        actions = task.action_box.to_box(drawn)
        return (actions[0] if single else actions), None

    def save(self, path: str | Path) -> Path:
        """Write everything to a folder; one that holds a save of it gets one more."""
        path = Path(path)
        spec = self._spec(max(int(self.state.real_steps), 1))
        run = open_run(path) if (path / CONFIG).exists() else create(path, spec)
        run.require_same(spec)
        with run.locked():
            return checkpoint.save(
                run.path,
                self.state,
                self.episodes,
                identity(self.learner),
                int(self.state.iteration),
            )

    @classmethod
    def load(cls: type[A], path: str | Path, env: str | None = None) -> A:
        """Read back what `save` or `pombu train` wrote.

        An environment named `module:factory` is code, so its name must be repeated.
        """
        run = open_run(Path(path))
        if run.spec.algorithm != cls.algorithm:
            raise UsageError(
                f"{run.path} was trained by {run.spec.algorithm}, not "
                f"{cls.algorithm}: load it with the class of that name."
            )
        learner = algorithm_of(run, env)
        template = learner.init(run.spec.seed)
        found = checkpoint.load_latest(run.path, template, identity(learner), _complain)
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


def _rows(name: str, given: Any, dim: int) -> np.ndarray:
    """One row or a batch of rows as [n, dim]."""
    rows = np.asarray(given, np.float32)
    if rows.size == 0 or rows.size % dim or not np.isfinite(rows).all():
        raise UsageError(
            f"The {name} has shape {rows.shape}; give one of {dim} finite entries, or "
            f"a batch [n, {dim}]."
        )
    return rows.reshape(-1, dim)


def _complain(message: str) -> None:
    warnings.warn(message, stacklevel=3)


class _WithEnsemble(Agent):
    """Agents whose ensemble tells how uncertain a Q-value is."""

    learner: Learner
    state: POMBUState

    def q_uncertainty(
        self, observation: Any, action: Any, rollouts: int = 20
    ) -> np.ndarray:
        """sqrt(U) of Q(s, a) under the current policy, in units of the task's reward.

        Args:
            observation: one observation or a batch.
            action: in the environment's own units.
            rollouts: imagined trajectories per pair whose variances are averaged.
        """
        task = self.learner.task
        states = _rows("observation", observation, task.observation_dim)
        actions = _rows("action", action, task.action_dim)
        if len(states) != len(actions) or rollouts < 1:
            raise UsageError(
                f"There are {len(states)} observations, {len(actions)} actions and "
                f"{rollouts} rollouts: give one action per observation and at least "
                "one rollout."
            )
        uncertainty = q_uncertainty(
            self.state.policy,
            self.state.value,
            self.learner.world(self.state),
            self.learner.rules,
            jnp.asarray(states),
            jnp.asarray(actions),
            rollouts,
            jax.random.key(self.seed),
        )
        return np.asarray(uncertainty)


class POMBU(_WithEnsemble):
    """Policy Optimization with Model-Based Uncertainty."""

    algorithm = "pombu"


class MEPPO(_WithEnsemble):
    """Model-ensemble PPO: POMBU without its uncertainty."""

    algorithm = "meppo"


class METRPO(Agent):
    """Model-Ensemble Trust-Region Policy Optimization."""

    algorithm = "metrpo"


class SLBO(Agent):
    """Stochastic Lower Bound Optimization."""

    algorithm = "slbo"


class MBMPO(Agent):
    """Model-Based Meta-Policy Optimization; acts by the policy before adaptation."""

    algorithm = "mbmpo"


class PETS(Agent):
    """Probabilistic Ensembles with Trajectory Sampling: every action is planned.

    `predict` has no plan to go on from, so it searches from the middle of the box.
    """

    algorithm = "pets"


class STEVE(Agent):
    """Stochastic Ensemble Value Expansion."""

    algorithm = "steve"


class SAC(Agent):
    """Soft actor-critic, by Stable-Baselines3."""

    algorithm = "sac"


class PPO(Agent):
    """Proximal policy optimisation, by Stable-Baselines3."""

    algorithm = "ppo"
