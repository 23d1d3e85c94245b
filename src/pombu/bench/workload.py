"""The paper's HalfCheetah as a piece of work, and the operations it asks for.

200 trajectories of 200 steps, K=5 members of 512-512; 10 epochs of minibatches of 500
over the resulting 40,000 samples. Times of several works are taken turn by turn.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pombu.algorithms.pombu.config import POMBUConfig
from pombu.algorithms.pombu.learner import Learner, State
from pombu.algorithms.registry import preset
from pombu.data import learn_from
from pombu.dynamics.ensemble import Ensemble
from pombu.dynamics.fit import fit_dynamics
from pombu.dynamics.model import Dynamics
from pombu.envs import Episode, Task, collect, load
from pombu.optim.ppo import Batch, improve_policy, improve_value, prepare
from pombu.parallel import ready, usable_cores
from pombu.rng import Keys
from pombu.rollout.imagine import ImaginationRules, Imagined, imagine_in_shards
from pombu.rollout.plan import starts
from pombu.rollout.returns import Targets

Work = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Seconds of each piece of work, round by round."""

    rounds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Seconds that the work takes."""
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, other: str) -> float:
        """How many times longer `name` takes than `other`: the median over rounds.

        Both were measured right after one another in each round, so what disturbs the
        machine for longer disturbs both.
        """
        pairs = zip(self.rounds[name], self.rounds[other], strict=True)
        return statistics.median(a / b for a, b in pairs)


def seconds(work: Work) -> float:
    """Time of one call, until its arrays are there."""
    start = time.perf_counter()
    ready(work())
    return time.perf_counter() - start


def take_turns(pieces: Mapping[str, Work], repeats: int, budget: float) -> Times:
    """Warm up, then time the pieces one after the other, round after round.

    Args:
        pieces: what to time, by name.
        repeats: rounds.
        budget: seconds after which no further round begins; there are at least two.
    """
    for work in pieces.values():
        seconds(work)
    rounds: dict[str, list[float]] = {name: [] for name in pieces}
    end = time.perf_counter() + budget
    for number in range(repeats):
        if number >= 2 and time.perf_counter() > end:
            break
        for name, work in pieces.items():
            rounds[name].append(seconds(work))
    return Times(rounds)


def with_best_threads(piece: Work) -> Work:
    """PyTorch's small products are faster on one thread, large ones on all: try."""
    import torch

    torch.set_num_threads(1)
    piece()
    spent = {}
    for threads in {1, usable_cores()}:
        torch.set_num_threads(threads)
        start = time.perf_counter()
        piece()
        spent[threads] = time.perf_counter() - start
    best = min(spent, key=spent.__getitem__)

    def run() -> object:
        torch.set_num_threads(best)
        return piece()

    return run


class CompileClock:
    """Adds up the time that JAX spends on tracing and compiling inside a `with`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> "CompileClock":
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *exception: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            self.seconds += duration_secs


TASK = "HalfCheetah"
SEED = 0


@dataclass(frozen=True)
class Workload:
    """An engine with real data, ready to work."""

    learner: Learner
    state: State
    episodes: Sequence[Episode]
    rules: ImaginationRules

    @property
    def config(self) -> POMBUConfig:
        """Its sizes."""
        return self.learner.config

    @property
    def fit_steps(self) -> int:
        """Gradient steps per member in a fit."""
        steps = self.config.model.max_steps
        assert steps is not None, "a benchmark's fit is bounded in steps"
        return steps

    @cached_property
    def keys(self) -> Keys:
        """Its random draws, always the same."""
        return Keys(SEED, 1)

    @cached_property
    def dynamics(self) -> Dynamics:
        """What it imagines in."""
        return self.learner.dynamics(self.state)

    @cached_property
    def starts(self) -> Float[Array, "N o"]:
        """Where it imagines from."""
        number = self.config.imagination.trajectories
        return starts(self.learner.task, self.episodes, number, self.keys.jax("start"))

    @cached_property
    def members(self) -> Float[Array, " K"]:
        """Every member gives the next state equally often."""
        number = self.dynamics.members.count
        return jnp.full(number, 1.0 / number)

    @cached_property
    def batch(self) -> Batch:
        """Samples to learn from."""
        prepared: tuple[Batch, Targets] = prepare(self.imagine(), self.config.returns)
        return prepared[0]

    def imagine(self) -> Imagined:
        """One imagined batch."""
        return imagine_in_shards(
            self.state.policy,
            self.state.value,
            self.dynamics,
            self.rules,
            self.starts,
            self.members,
            self.keys.jax("imagine"),
            self.config.imagination.shards,
            self.learner.workers,
        )

    def fit(self) -> Ensemble:
        """One fit from fresh weights."""
        ensemble, _ = fit_dynamics(
            self.state.ensemble,
            self.episodes,
            self.state.experience,
            self.config.model,
            stored_steps(self.episodes),
            self.keys.numpy("fit"),
            0,
            self.learner.workers,
        )
        return ensemble

    def improve(self, batch: Batch) -> object:
        """One update of V_phi and of pi_theta, side by side as in training."""
        state, config = self.state, self.config
        return self.learner.workers.both(
            partial(
                improve_value,
                state.value,
                state.value_optimiser,
                batch,
                self.keys.numpy("value"),
                config.value.learning_rate,
                config.value,
            ),
            partial(
                improve_policy,
                state.policy,
                state.policy_optimiser,
                batch,
                self.keys.numpy("policy"),
                config.policy.learning_rate,
                config.alpha,
                config.policy,
            ),
        )

    def update(self) -> object:
        """One whole update: imagine, estimate, improve."""
        batch, _ = prepare(self.imagine(), self.config.returns)
        return self.improve(batch)


def paper_workload(
    stored: int,
    fit_steps: int,
    change: Callable[[POMBUConfig], POMBUConfig] | None = None,
) -> Workload:
    """The paper's sizes, or what `change` makes of them.

    Args:
        stored: real steps to learn from.
        fit_steps: gradient steps per member in a fit, with five validations.
        change: makes other sizes.
    """
    config = preset("pombu", "paper", TASK)
    config = config if change is None else change(config)
    model = replace(
        config.model,
        max_steps=fit_steps,
        validate_every_steps=-(-fit_steps // 5),
        validation_rows=4000,
    )
    learner = Learner(load(TASK), replace(config, model=model))
    episodes = random_episodes(learner.task, stored)
    state = with_experience(learner, episodes)
    return Workload(learner, tamed(state), episodes, learner.rules)


def tamed(state: Any) -> Any:
    """Let untrained members predict small changes, so that no trajectory runs away."""
    return eqx.tree_at(
        lambda s: s.ensemble.layers[-1].gain, state, replace_fn=lambda gain: 0.05 * gain
    )


def random_episodes(task: Task, steps: int) -> list[Episode]:
    """Real episodes under random actions, `steps` steps in all."""
    number = -(-steps // task.horizon)
    actions = np.random.default_rng(SEED).uniform(
        -1, 1, (task.horizon, number, task.action_dim)
    )
    return collect(task, lambda obs, step: actions[step], range(number))


def stored_steps(episodes: Sequence[Episode]) -> int:
    """Real steps in all episodes."""
    return sum(map(len, episodes))


def with_experience(learner: Learner, episodes: Sequence[Episode]) -> State:
    """An untrained state that has seen the episodes."""
    state = learner.init(SEED)
    returns = learner.config.returns
    experience = learn_from(
        state.experience, episodes, returns.gamma, returns.reward_clip
    )
    known: State = eqx.tree_at(
        lambda s: (s.experience, s.iteration), state, (experience, np.asarray(1))
    )
    return known


def products(inputs: int, hidden: Sequence[int], outputs: int) -> list[int]:
    """Multiplications per row in each layer."""
    sizes = (inputs, *hidden, outputs)
    return [i * o for i, o in itertools.pairwise(sizes)]


def forward(products: Sequence[int]) -> int:
    """Operations per row to predict: a multiplication and an addition each."""
    return 2 * sum(products)


def backward_too(products: Sequence[int]) -> int:
    """Operations per row of a gradient step; nothing flows back into the inputs."""
    return 6 * sum(products) - 2 * products[0]


@dataclass(frozen=True)
class Operations:
    """Floating point operations in matrix products, as the algorithm asks for them."""

    imagined_step: int
    fitted_row: int
    """Of one member."""
    updated_sample: int
    """Of policy and value."""


def operations(task: Task, config: POMBUConfig) -> Operations:
    """Count them from the sizes of the networks."""
    obs, act = task.observation_dim, task.action_dim
    member = products(obs + act, config.model.hidden, obs)
    policy = products(obs, config.policy.hidden, act)
    value = products(obs, config.value.hidden, 1)
    return Operations(
        config.model.members * (forward(member) + forward(value)) + forward(policy),
        backward_too(member),
        backward_too(policy) + backward_too(value),
    )
