"""Learned dynamics: an ensemble, the units it was trained in, and the task's rules."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pombu.data import Experience, Normaliser, moved
from pombu.dynamics.config import (
    Draw,
    ImaginationConfig,
    ModelConfig,
    MultiStepModelConfig,
    PlainReturnConfig,
    Precision,
)
from pombu.dynamics.ensemble import Ensemble, Layers, materialise, predict
from pombu.dynamics.termination import TerminationModel, network_of, says_ended
from pombu.envs import ActionBox, Contract, Task, without_termination
from pombu.errors import UsageError
from pombu.nn import MLP
from pombu.parallel import jit


class Dynamics(eqx.Module):
    """Learned dynamics in the data's own units."""

    layers: Layers
    observation: Normaliser
    action: Normaliser
    delta: Normaliser
    """Units of the state change; of the newest frame's, where states are stacks."""
    reward: Normaliser | None
    """How a learned reward is restored; None where the task's reward is known."""
    return_std: Float[Array, ""]
    """Standard deviation of real returns, by which rewards are scaled."""
    ending: MLP | None = None
    """Learned termination; None leaves it to the contract."""
    most_disagreement: Float[Array, ""] | None = None
    """Above it a step is an imagined trajectory's last; None never stops one."""

    @property
    def members(self) -> int:
        """K."""
        return self.layers.biases[0].shape[0]

    def unstack(self) -> tuple[Layers, ...]:
        """Each member's weights in arrays of their own.

        A loop that predicts at every step makes them once, before it begins: a stack
        would be sliced, that is copied, at every step.
        """
        return tuple(
            jax.tree.map(lambda leaf, k=k: leaf[k], self.layers)
            for k in range(self.members)
        )

    def only(self, member: Int[Array, ""]) -> "Dynamics":
        """The same dynamics with a single member."""
        alone = jax.tree.map(lambda leaf: leaf[member][None], self.layers)
        single: Dynamics = eqx.tree_at(lambda dynamics: dynamics.layers, self, alone)
        return single


class DynamicsRules(eqx.Module):
    """What stays the same from rollout to rollout; hashable, so static under jit."""

    contract: Contract | None = eqx.field(static=True)
    box: ActionBox = eqx.field(static=True)
    returns: PlainReturnConfig = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    runaway: float = eqx.field(static=True)
    precision: Precision = eqx.field(static=True)
    draw: Draw = eqx.field(static=True, default="trajectory")
    real_starts: float = eqx.field(static=True, default=0.0)
    disagreement_stop: float | None = eqx.field(static=True, default=None)


def rules_of(
    task: Task,
    returns: PlainReturnConfig,
    imagination: ImaginationConfig,
    model: ModelConfig | MultiStepModelConfig,
    draw: Draw = "trajectory",
) -> DynamicsRules:
    """The rules by which a config's trajectories are imagined in a task."""
    contract = task.contract
    if model.termination == "learned":
        contract = without_termination(contract)
    if model.kind == "simulator" and imagination.real_starts:
        raise UsageError(
            "imagination.real_starts begins trajectories in stored states, and "
            "model.kind = simulator can only begin with a reset: set one of them back."
        )
    if model.kind == "simulator" and imagination.horizon(task.horizon) < task.horizon:
        raise UsageError(
            "imagination.steps cuts trajectories short, and model.kind = simulator "
            "plays whole episodes: set one of them back."
        )
    _require_members(imagination, model, draw)
    return DynamicsRules(
        contract,
        task.action_box,
        returns,
        imagination.horizon(task.horizon),
        imagination.runaway,
        model.precision,
        draw,
        imagination.real_starts,
        imagination.disagreement_stop,
    )


def _require_members(
    imagination: ImaginationConfig,
    model: ModelConfig | MultiStepModelConfig,
    draw: Draw,
) -> None:
    """Refuse to ask whether members disagree where there are none to ask."""
    if imagination.disagreement_stop is None:
        return
    reasons = {
        "model.kind = simulator has none": model.kind == "simulator",
        "model.kind = network is a single one": model.kind == "network",
        "draw = batch computes only one of them": draw == "batch",
    }
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(
                "imagination.disagreement_stop compares what the members predict, and "
                f"{reason}: set one of the two back."
            )


_materialise = jit(materialise)


def require_reward(task: Task, reward: str) -> None:
    """Refuse to use a reward function that the task does not have."""
    if reward == "known" and "reward" not in task.known:
        raise UsageError(
            f"{task.config.id} has no known reward function: set model.reward to "
            "'learned', or give the environment a contract with one."
        )


def network_sizes(task: Task, reward: str) -> tuple[int, int]:
    """Inputs and outputs of a network that predicts the task's steps.

    Of a state that is a stack of frames it predicts the newest one's change.

    Raises:
        UsageError: The task does not have the reward function that is to be used.
    """
    require_reward(task, reward)
    inputs = task.observation_dim + task.action_dim
    return inputs, task.frame_dim + int(reward == "learned")


def dynamics_of(
    ensemble: Ensemble,
    experience: Experience,
    config: ModelConfig,
    ending: TerminationModel | None = None,
) -> Dynamics:
    """Join an ensemble with the units of the data it was trained on."""
    learned = config.reward == "learned"
    return Dynamics(
        _materialise(ensemble),
        Normaliser.of(experience.observation),
        Normaliser.of(experience.action),
        Normaliser.of(experience.delta),
        Normaliser.of(experience.reward) if learned else None,
        jnp.asarray(experience.returns.std[0], jnp.float32),
        network_of(ending),
    )


def outputs(
    dynamics: Dynamics,
    precision: Precision,
    state: Float[Array, "n o"],
    action: Float[Array, "n a"],
    unstacked: Sequence[Layers] | None = None,
) -> Float[Array, "K n y"]:
    """All members' normalised state changes (and rewards, where these are learned)."""
    x = jnp.concatenate(
        [dynamics.observation.normalise(state), dynamics.action.normalise(action)], -1
    )
    members = dynamics.unstack() if unstacked is None else unstacked
    return jnp.stack([predict(member, x, precision) for member in members])


def predict_step(
    dynamics: Dynamics,
    rules: DynamicsRules,
    state: Float[Array, "n o"],
    action: Float[Array, "n a"],
    unstacked: Sequence[Layers] | None = None,
) -> tuple[Float[Array, "K n o"], Float[Array, "K n"]]:
    """All members' next states and raw rewards.

    Args:
        dynamics: the learned dynamics.
        rules: reward function and precision.
        state: states before the step.
        action: actions in the task's units.
        unstacked: `dynamics.unstack()`, where a loop has made it.
    """
    output = outputs(dynamics, rules.precision, state, action, unstacked)
    dim = dynamics.delta.mean.shape[-1]
    following = moved(state, dynamics.delta.restore(output[..., :dim]))
    if dynamics.reward is not None:
        return following, dynamics.reward.restore(output[..., dim:])[..., 0]
    assert rules.contract is not None, "network_sizes refuses a task without one"
    reward = rules.contract.reward(
        jnp.broadcast_to(state, following.shape),
        jnp.broadcast_to(action, (dynamics.members, *action.shape)),
        following,
    )
    return following, check_shape("reward", reward, following)


def ends(
    dynamics: Dynamics,
    rules: DynamicsRules,
    state: Float[Array, "n o"],
    action: Float[Array, "n a"],
    following: Float[Array, "K n o"],
) -> Bool[Array, "K n"]:
    """Where each member's step ends the episode for good."""
    if dynamics.ending is not None:
        return says_ended(dynamics.ending, dynamics.observation, following)
    if rules.contract is None:
        return jnp.zeros(following.shape[:-1], bool)
    members = len(following)
    ended = rules.contract.terminal(
        jnp.broadcast_to(state, following.shape),
        jnp.broadcast_to(action, (members, *action.shape)),
        following,
    )
    return check_shape("terminal", ended, following).astype(bool)


def check_shape(name: str, given: Any, following: Array) -> Array:
    """What a task's function gave, if it is one number per step."""
    array = jnp.asarray(given)
    due = following.shape[:-1]
    if array.shape != due:
        raise UsageError(
            f"The environment's {name} function gave shape {array.shape} for states of "
            f"shape {following.shape}, where {due} is due: let it reduce the last axis "
            "and keep all others, as in `next_obs[..., 0]`."
        )
    return array
