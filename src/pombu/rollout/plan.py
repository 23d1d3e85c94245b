"""Virtual trajectories for a named purpose: in the ensemble, or in the simulator."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import Array, Float

from pombu.dynamics.model import Dynamics, DynamicsRules
from pombu.envs import Episode, Task
from pombu.nn import MLP, GaussianPolicy, VarianceValue
from pombu.parallel import Workers
from pombu.rng import Keys
from pombu.rollout.imagine import Imagined, imagine_in_shards
from pombu.rollout.simulate import simulate
from pombu.rollout.starts import branch_starts


class RolloutPlan(NamedTuple):
    """A batch of virtual trajectories to be imagined."""

    stage: str
    number: int
    """Which of the stage's batches; with the stage, it names the random draws."""
    trajectories: int
    shards: int
    member_weights: Float[Array, " K"]
    """How often each member gives the next state."""
    tail: VarianceValue | None = None
    """U_psi, which continues D past the end of a trajectory."""


Imaginer = Callable[[GaussianPolicy, MLP | None, RolloutPlan], Imagined]


def imaginer(
    kind: str,
    task: Task,
    dynamics: Dynamics,
    rules: DynamicsRules,
    episodes: Sequence[Episode],
    keys: Keys,
    workers: Workers,
) -> Imaginer:
    """Imagine where a config's model says: in the simulator, or in what was learned."""
    where = in_simulator if kind == "simulator" else in_ensemble
    return where(task, dynamics, rules, episodes, keys, workers)


def in_ensemble(
    task: Task,
    dynamics: Dynamics,
    rules: DynamicsRules,
    episodes: Sequence[Episode],
    keys: Keys,
    workers: Workers,
) -> Imaginer:
    """Imagine in the learned dynamics."""

    def imagine_batch(
        policy: GaussianPolicy, value: MLP | None, plan: RolloutPlan
    ) -> Imagined:
        start_key = keys.jax(f"{plan.stage} start", plan.number)
        first, limits = branch_starts(
            task, episodes, plan.trajectories, rules.real_starts, start_key
        )
        return imagine_in_shards(
            policy,
            value,
            dynamics,
            rules,
            first,
            plan.member_weights,
            keys.jax(plan.stage, plan.number),
            plan.shards,
            workers,
            limits,
            plan.tail,
        )

    return imagine_batch


def in_simulator(
    task: Task,
    dynamics: Dynamics,
    rules: DynamicsRules,
    episodes: Sequence[Episode],
    keys: Keys,
    workers: Workers,
) -> Imaginer:
    """Imagine in the real environment, with the units of the learned dynamics."""

    def imagine_batch(
        policy: GaussianPolicy, value: MLP | None, plan: RolloutPlan
    ) -> Imagined:
        return simulate(
            policy,
            value,
            task,
            dynamics.observation,
            float(dynamics.return_std),
            rules.returns,
            keys.jax(plan.stage, plan.number),
            keys.episodes(f"{plan.stage} {plan.number}", plan.trajectories),
        )

    return imagine_batch
