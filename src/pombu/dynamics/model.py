"""Learned dynamics: one interface for whatever predicts a step.

`Dynamics` joins members (deterministic or Gaussian networks) with the units of the data
they were trained on and with what is known of the task: reward and termination are the
task's own functions, or learned. Imagination, planning, value expansion, diagnosis and
the uncertainty of Q-values all call `step`, `move` or `sample`.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pombu.data import Experience, Normaliser, moved
from pombu.dynamics.config import Precision
from pombu.dynamics.ensemble import Ensemble, Members, Unstacked, materialise
from pombu.envs import Contract, Episode, Task, without_termination
from pombu.errors import UsageError
from pombu.nn import MLP, Descent, adam, gradient_steps, init_mlp, xavier
from pombu.parallel import jit
from pombu.rng import Keys


class Step(NamedTuple):
    """What a step leads to, in the task's units; members on the first axis."""

    states: Float[Array, "*k n o"]
    rewards: Float[Array, "*k n"]
    """As the task gives them, neither clipped nor scaled."""
    ends: Bool[Array, "*k n"]
    """Whether the step ends the episode for good."""


class Dynamics(eqx.Module):
    """Learned dynamics: members, units of the data, reward and termination."""

    members: Members
    observation: Normaliser
    action: Normaliser
    delta: Normaliser
    """Units of the state change; of the newest frame's, where states are stacks."""
    reward: Normaliser | None
    """How a learned reward is restored; None where the task's reward is known."""
    return_std: Float[Array, ""]
    """Standard deviation of real returns, by which rewards are scaled."""
    termination: MLP | None = None
    """Learned termination; None leaves it to the contract."""
    most_disagreement: Float[Array, ""] | None = None
    """Above it a step is an imagined trajectory's last; None never stops one."""
    contract: Contract | None = eqx.field(static=True, default=None)
    """The task's own functions; without them nothing ends and rewards are learned."""
    precision: Precision = eqx.field(static=True, default="float32")

    @property
    def output_dim(self) -> int:
        """Entries that a member predicts: the state change, and a learned reward."""
        return self.delta.mean.shape[-1] + int(self.reward is not None)

    def step(self, states: Float[Array, "n o"], actions: Float[Array, "n a"]) -> Step:
        """Every member's mean prediction for the same rows.

        Args:
            states: before the step.
            actions: in the task's units.
        """
        return self._restore(states, actions, self.outputs(states, actions))

    def move(
        self,
        states: Float[Array, "K m o"],
        actions: Float[Array, "K m a"],
        noise: Float[Array, "K m y"] | None = None,
    ) -> Step:
        """Every member's prediction for rows of its own.

        Args:
            states: before the step.
            actions: in the task's units.
            noise: standard normal draws, for Gaussian members; None takes their means.
        """
        x = self._inputs(states, actions)
        mean, log_std = self.members.outputs(x, self.precision)
        if noise is None or log_std is None:
            return self._restore(states, actions, mean)
        return self._restore(states, actions, mean + noise * jnp.exp(log_std))

    def sample(
        self,
        states: Float[Array, "K m o"],
        actions: Float[Array, "K m a"],
        key: PRNGKeyArray,
    ) -> Step:
        """Every member's draw for rows of its own; its prediction if deterministic."""
        noise = jax.random.normal(key, (*states.shape[:-1], self.output_dim))
        return self.move(states, actions, noise)

    def outputs(
        self, states: Float[Array, "n o"], actions: Float[Array, "n a"]
    ) -> Float[Array, "K n y"]:
        """All members' normalised state changes (and rewards, where learned)."""
        x = self._inputs(states, actions)
        each = self.members.unstack()
        return jnp.stack([one.outputs(x, self.precision)[0] for one in each])

    def outcome(
        self,
        states: Float[Array, "*b o"],
        actions: Float[Array, "*b a"],
        following: Float[Array, "*k n o"],
        learned_rewards: Float[Array, "*k n"] | None,
    ) -> Step:
        """What steps to given next states earn, and whether they end the episode.

        Args:
            states: before the step; the same for all of `k`, or one for each.
            actions: in the task's units.
            following: the states that they lead to.
            learned_rewards: where the reward is learned.
        """
        shape = following.shape
        given = (
            jnp.broadcast_to(states, shape),
            jnp.broadcast_to(actions, (*shape[:-1], actions.shape[-1])),
            following,
        )
        if learned_rewards is None:
            assert self.contract is not None, "network_sizes refuses a task without one"
            rewards = _checked("reward", self.contract.reward(*given), following)
        else:
            rewards = learned_rewards
        if self.termination is not None:
            ends = says_ended(self.termination, self.observation, following)
        elif self.contract is None:
            ends = jnp.zeros(shape[:-1], bool)
        else:
            ended = self.contract.terminal(*given)
            ends = _checked("terminal", ended, following).astype(bool)
        return Step(following, rewards, ends)

    def plausible(
        self, states: Float[Array, "*b o"], runaway: float
    ) -> Bool[Array, "*b"]:
        """Whether states lie within so many standard deviations of the real data.

        Each dimension is measured in its own unit, so that the limit means the same for
        observations of 0.001 and of a million; what is not finite is not plausible.
        """
        return jnp.all(jnp.abs(self.observation.normalise(states)) <= runaway, -1)

    def unstack(self) -> "Dynamics":
        """The same dynamics for a loop that predicts at every step: see `Unstacked`."""
        unstacked = Unstacked(self.members.unstack())
        loop: Dynamics = eqx.tree_at(lambda d: d.members, self, unstacked)
        return loop

    def only(self, member: Int[Array, ""]) -> "Dynamics":
        """The same dynamics with a single member, of a stack."""
        alone = jax.tree.map(lambda leaf: leaf[member][None], self.members)
        single: Dynamics = eqx.tree_at(lambda d: d.members, self, alone)
        return single

    def _inputs(
        self, states: Float[Array, "*b o"], actions: Float[Array, "*b a"]
    ) -> Float[Array, "*b i"]:
        return jnp.concatenate(
            [self.observation.normalise(states), self.action.normalise(actions)], -1
        )

    def _restore(
        self,
        states: Float[Array, "*b o"],
        actions: Float[Array, "*b a"],
        output: Float[Array, "K n y"],
    ) -> Step:
        """What outputs of the members stand for."""
        dim = self.delta.mean.shape[-1]
        following = moved(states, self.delta.restore(output[..., :dim]))
        learned = None
        if self.reward is not None:
            learned = self.reward.restore(output[..., dim:])[..., 0]
        return self.outcome(states, actions, following, learned)


# How the classifier of learned termination is trained.
_HIDDEN = (64, 64)
_LEARNING_RATE = 1e-3
_STEPS = 1000
_BATCH = 256
_ENDS_PER_BATCH = 64
"""Ends are rare, so that each batch has some, and more weight than their number: in
doubt an end is seen. An invented end costs the policy a little, a missed one lets it
earn where nothing is to be earned."""
_PIECE = 4096
"""States that are classified at once."""


class TerminationModel(eqx.Module):
    """A classifier of states where episodes end for good, and how many ends it saw.

    A small network looks at the state that a step leads to, in which the rules of
    nearly all environments are written. Applied to every member's next state it takes
    part in the uncertainty: where the members do not agree that a step is the last
    one, their Q-values differ by all that would have followed.
    """

    network: MLP
    terminations: np.ndarray


def init_termination(
    key: PRNGKeyArray, task: Task, termination: Literal["known", "learned"]
) -> TerminationModel | None:
    """An untrained classifier, where termination is to be learned."""
    if termination == "known":
        return None
    sizes = (task.observation_dim, *_HIDDEN, 1)
    return TerminationModel(init_mlp(key, sizes, xavier), np.asarray(0))


def network_of(termination: TerminationModel | None) -> MLP | None:
    """The classifier to imagine with; None until a real episode has terminated."""
    return (
        termination.network
        if termination is not None and termination.terminations
        else None
    )


def says_ended(
    network: MLP, observation: Normaliser, states: Float[Array, "*b o"]
) -> Bool[Array, "*b"]:
    """Whether an episode that has come to these states is over."""
    return network(observation.normalise(states))[..., 0] > 0


def fit_termination(
    termination: TerminationModel | None,
    episodes: Sequence[Episode],
    experience: Experience,
    keys: Keys,
) -> tuple[TerminationModel | None, dict[str, float]]:
    """Train the classifier on all real states, if any episode has terminated.

    Returns:
        The classifier, and the shares of real ends that it misses and of other real
        states that it takes for ends.
    """
    terminations = sum(episode.terminated for episode in episodes)
    if termination is None or not terminations:
        return termination, {}
    states = np.concatenate([episode.observations[1:] for episode in episodes])
    ended = np.zeros(len(states), bool)
    last = np.cumsum([len(episode) for episode in episodes]) - 1
    ended[last] = [episode.terminated for episode in episodes]
    moments = experience.observation
    # On the host, for arrays that grow would be compiled again in every iteration.
    normal = ((states - moments.mean) / moments.std).astype(np.float32)
    ends, others = normal[ended], normal[~ended]
    rng = np.random.default_rng(keys.numpy("ending"))
    batches = _batches(rng, ends, others)
    network = _train(termination.network, *batches)
    found = {
        "termination_missed": 1.0 - _share_of_ends(network, ends),
        "termination_invented": _share_of_ends(network, others),
    }
    return TerminationModel(network, np.asarray(terminations)), found


def _share_of_ends(network: MLP, normal: np.ndarray) -> float:
    """The share of states that the classifier takes for ends, in pieces of one size."""
    said = 0
    for begin in range(0, len(normal), _PIECE):
        piece = normal[begin : begin + _PIECE]
        padded = np.zeros((_PIECE, normal.shape[1]), np.float32)
        padded[: len(piece)] = piece
        logits = np.asarray(_logits(network, jnp.asarray(padded)))
        said += int((logits[: len(piece)] > 0).sum())
    return said / max(len(normal), 1)


@jit
def _logits(network: MLP, normal: Float[Array, "n o"]) -> Float[Array, " n"]:
    return network(normal)[:, 0]


def _batches(
    rng: np.random.Generator, ends: np.ndarray, others: np.ndarray
) -> tuple[Float[Array, "s b o"], Float[Array, "s b"]]:
    """Rows and labels of every gradient step; only ends where there is nothing else."""
    share = _ENDS_PER_BATCH if len(others) else _BATCH
    rows = ends[rng.integers(len(ends), size=(_STEPS, share))]
    if len(others):
        chosen = rng.integers(len(others), size=(_STEPS, _BATCH - share))
        rows = np.concatenate([rows, others[chosen]], 1)
    labels = np.broadcast_to(np.arange(_BATCH) < share, (_STEPS, _BATCH))
    return jnp.asarray(rows), jnp.asarray(labels, jnp.float32)


@jit
def _train(
    network: MLP, rows: Float[Array, "s b o"], labels: Float[Array, "s b"]
) -> MLP:
    def loss(network: MLP, batch: tuple[Array, Array]) -> tuple[Array, None]:
        states, ended = batch
        logits = network(states)[:, 0]
        errors = optax.sigmoid_binary_cross_entropy(logits, ended)
        return jnp.mean(errors), None

    begin = Descent(network, adam().init(network))
    trained, _ = gradient_steps(loss, adam(), begin, _LEARNING_RATE, (rows, labels))
    found: MLP = trained.parameters
    return found


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


@runtime_checkable
class PredictionConfig(Protocol):
    """What is read of the config of a model, whatever its networks."""

    @property
    def reward(self) -> Literal["known", "learned"]:
        """Whether the task's reward function is used."""

    @property
    def precision(self) -> Precision:
        """Number format of matrix products."""


def dynamics_of(
    networks: Ensemble | Members,
    experience: Experience,
    task: Task,
    config: PredictionConfig,
    termination: TerminationModel | None = None,
) -> Dynamics:
    """Join networks with the units of their data and with what is known of the task.

    Args:
        networks: an ensemble as it is trained, or members that are ready to predict.
        experience: moments of the data.
        task: its reward and termination functions.
        config: whether the reward is learned, and the precision.
        termination: learned termination; None uses the task's.
    """
    members = _materialise(networks) if isinstance(networks, Ensemble) else networks
    contract = task.contract
    return Dynamics(
        members,
        Normaliser.of(experience.observation),
        Normaliser.of(experience.action),
        Normaliser.of(experience.delta),
        Normaliser.of(experience.reward) if config.reward == "learned" else None,
        jnp.asarray(experience.returns.std[0], jnp.float32),
        network_of(termination),
        contract=contract if termination is None else without_termination(contract),
        precision=config.precision,
    )


def _checked(name: str, given: Any, following: Array) -> Array:
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
