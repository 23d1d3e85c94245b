"""The engine's hot loops written plainly in PyTorch: what one would otherwise write.

Eager, float32, all cores, and no straw man: the K members share one batched product per
layer, noise for the whole horizon is drawn at once, rollouts run in inference mode,
epochs are shuffled once and read in order, and Adam is fused. The same weights and
draws give the same results as the engine, which the tests check. `pieces` has them
ready to be timed beside the engine's.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from pombu.bench.workload import Work, Workload, with_best_threads
from pombu.data import build_dataset, regression
from pombu.dynamics.config import ModelConfig
from pombu.dynamics.ensemble import PUBLISHED, Ensemble, Layers, WeightNorm
from pombu.dynamics.model import Dynamics
from pombu.envs import Contract
from pombu.errors import UsageError
from pombu.nn import MLP, GaussianPolicy
from pombu.optim.config import PolicyConfig, ValueConfig
from pombu.optim.ppo import Batch
from pombu.rollout.imagine import ImaginationRules

_LOG_2PI = float(np.log(2.0 * np.pi))


def tensor(array: Any) -> Tensor:
    """A tensor with a copy of the array's values."""
    return torch.from_numpy(np.array(array))


def network(mlp: MLP) -> nn.Sequential:
    """The same perceptron as a PyTorch module."""
    layers: list[nn.Module] = []
    for weight, bias in zip(mlp.weights, mlp.biases, strict=True):
        inputs, outputs = weight.shape
        layer = nn.Linear(inputs, outputs)
        layer.weight.data = tensor(weight).T.contiguous()
        layer.bias.data = tensor(bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class TorchPolicy(nn.Module):
    """The Gaussian policy."""

    def __init__(self, policy: GaussianPolicy) -> None:
        super().__init__()
        self.mean = network(policy.mean)
        self.log_std = nn.Parameter(tensor(policy.log_std))

    def log_prob(self, observation: Tensor, action: Tensor) -> Tensor:
        """log pi(a|s)."""
        noise = (action - self.mean(observation)) * torch.exp(-self.log_std)
        return self.log_prob_of(noise)

    def log_prob_of(self, noise: Tensor) -> Tensor:
        """log pi(a|s) of an action that is so many standard deviations off the mean."""
        log_2pi = noise.shape[-1] * _LOG_2PI
        return -0.5 * (noise.square().sum(-1) + log_2pi) - self.log_std.sum()


class Samples(NamedTuple):
    """The engine's `Batch` as tensors."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    returns: Tensor
    advantages: Tensor
    uncertainty: Tensor
    weight: Tensor

    @staticmethod
    def of(batch: Batch) -> "Samples":
        """Copy the engine's."""
        return Samples(*map(tensor, batch[: len(Samples._fields)]))


class TorchDynamics(NamedTuple):
    """A learned dynamics's weights, members stacked, and its units."""

    weights: list[Tensor]
    biases: list[Tensor]
    observation: tuple[Tensor, Tensor]
    """Mean and standard deviation, like those below."""
    action: tuple[Tensor, Tensor]
    delta: tuple[Tensor, Tensor]
    return_std: Tensor
    contract: Contract

    @staticmethod
    def of(dynamics: Dynamics) -> "TorchDynamics":
        """Copy the engine's."""
        members, contract = dynamics.members, dynamics.contract
        assert isinstance(members, Layers), "the reference knows no other members"
        assert contract is not None, "the reference knows no learned rewards"
        return TorchDynamics(
            [tensor(weight) for weight in members.weights],
            [tensor(bias)[:, None] for bias in members.biases],
            (tensor(dynamics.observation.mean), tensor(dynamics.observation.std)),
            (tensor(dynamics.action.mean), tensor(dynamics.action.std)),
            (tensor(dynamics.delta.mean), tensor(dynamics.delta.std)),
            tensor(dynamics.return_std),
            contract,
        )

    def predict(self, x: Tensor) -> Tensor:
        """All members' normalised state changes, [K, n, o], for rows [n, i]."""
        members, *_ = self.weights[0].shape
        x = x.expand(members, *x.shape)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = torch.baddbmm(bias, x, weight).relu_()
        return torch.baddbmm(self.biases[-1], x, self.weights[-1])


@torch.inference_mode()
def imagine(
    policy: TorchPolicy,
    value: nn.Module,
    dynamics: TorchDynamics,
    rules: ImaginationRules,
    starts: Tensor,
    noise: Tensor,
    chosen: Tensor,
) -> dict[str, Tensor]:
    """Roll the policy out; fields as in the engine's `Imagined`.

    Args:
        policy: pi_old.
        value: V_old.
        dynamics: the learned dynamics.
        rules: of a task that never ends early.
        starts: [N, o] first states.
        noise: [H, N, a] standard normal draws.
        chosen: [H, N] the member that gives the next state.
    """
    # 1. Units and bounds, once for all steps.
    reward_of = dynamics.contract.reward
    std = policy.log_std.exp()
    low, high = torch.tensor(rules.box.low), torch.tensor(rules.box.high)
    middle, half = (high + low) / 2, (high - low) / 2
    rows = torch.arange(len(starts))
    members = len(dynamics.weights[0])
    sound = torch.ones(len(starts), dtype=torch.bool)

    def normalise(x: Tensor, units: tuple[Tensor, Tensor]) -> Tensor:
        mean, std = units
        return (x - mean) / std

    def values_of(states: Tensor) -> Tensor:
        value_of: Tensor = value(normalise(states, dynamics.observation))
        return value_of.squeeze(-1)

    state, value_now = starts, values_of(starts)
    steps = []
    for draw, member in zip(noise, chosen, strict=True):
        # 2. Act, and let every member predict.
        observation = normalise(state, dynamics.observation)
        action = policy.mean(observation) + std * draw
        boxed = middle + action.clamp(-1, 1) * half
        change = dynamics.predict(
            torch.cat([observation, normalise(boxed, dynamics.action)], -1)
        )
        following = state + (change * dynamics.delta[1] + dynamics.delta[0])
        raw = reward_of(
            state.expand_as(following), boxed.expand(members, *boxed.shape), following
        )
        # 3. Rewards and local uncertainty in scaled units; mask what runs away.
        clip = rules.returns.reward_clip
        clipped = raw if clip is None else raw.clamp(-clip, clip)
        reward = (
            clipped / dynamics.return_std if rules.returns.scale_rewards else clipped
        )
        next_values = values_of(following)
        local = (reward + rules.returns.gamma * next_values).var(0, correction=0)
        mean_reward = reward.mean(0)
        spread = normalise(following, dynamics.observation).abs()
        kept = (spread <= rules.runaway).all(-1).all(0)
        kept &= local.isfinite() & mean_reward.isfinite()
        sound &= kept
        steps.append(
            (
                observation,
                action,
                policy.log_prob_of(draw),
                mean_reward,
                value_now,
                local,
                raw.mean(0),
            )
        )
        # 4. Go on from the chosen member's prediction.
        state = torch.where(kept[:, None], following[member, rows], starts)
        value_now = next_values[member, rows]
    names = (
        "observations",
        "actions",
        "log_probs",
        "rewards",
        "values",
        "local",
        "raw_rewards",
    )
    columns = map(torch.stack, zip(*steps, strict=True))
    fields = dict(zip(names, columns, strict=True))
    return {name: _only(sound, field) for name, field in fields.items()}


def _only(sound: Tensor, field: Tensor) -> Tensor:
    """Zeros for trajectories that were masked."""
    keep = sound.reshape((1, -1) + (1,) * (field.ndim - 2))
    return torch.where(keep, field, 0.0)


def _shuffled(
    batch: Sequence[Tensor], order: Tensor, size: int
) -> Iterator[tuple[Tensor, ...]]:
    """One epoch's minibatches; samples that fill no last one sit out."""
    used = order[: len(order) // size * size]
    return zip(*(torch.split(column[used], size) for column in batch), strict=True)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (values * weight).sum() / weight.sum().clamp(min=1.0)


def _descend(
    loss: Callable[..., Tensor],
    parameters: Sequence[nn.Parameter],
    batch: Sequence[Tensor],
    orders: Tensor,
    minibatch: int,
    learning_rate: float,
    gradient_clip: float,
    eps: float,
) -> None:
    optimiser = torch.optim.Adam(parameters, learning_rate, eps=eps, fused=True)
    for order in orders:
        for samples in _shuffled(batch, order, minibatch):
            optimiser.zero_grad()
            torch.autograd.backward(loss(*samples))
            nn.utils.clip_grad_norm_(parameters, gradient_clip, foreach=True)
            optimiser.step()


def improve_value(
    value: nn.Module, batch: Samples, orders: Tensor, config: ValueConfig
) -> None:
    """Minimise L_v, in place."""

    def loss(observations: Tensor, returns: Tensor, weight: Tensor) -> Tensor:
        error = value(observations).squeeze(-1) - returns
        return _mean(error.square(), weight)

    _descend(
        loss,
        list(value.parameters()),
        (batch.observations, batch.returns, batch.weight),
        orders,
        config.minibatch,
        config.learning_rate,
        config.gradient_clip,
        1e-8,
    )


def improve_policy(
    policy: TorchPolicy,
    batch: Samples,
    orders: Tensor,
    alpha: float,
    config: PolicyConfig,
) -> None:
    """Maximise L_pi = L_clip - alpha L_std, in place."""
    low, high = 1.0 - config.clip, 1.0 + config.clip

    def loss(
        observations: Tensor,
        actions: Tensor,
        log_probs: Tensor,
        advantages: Tensor,
        uncertainty: Tensor,
        weight: Tensor,
    ) -> Tensor:
        change = policy.log_prob(observations, actions) - log_probs
        ratio = torch.where(weight > 0, change, 0.0).clamp(-20.0, 20.0).exp()
        limited = torch.where(
            advantages > 0, ratio.clamp(max=high), ratio.clamp(min=low)
        )
        gain = _mean((limited - 1.0) * advantages, weight)
        departure = (ratio - 1.0).abs()
        departure = torch.where(departure > 1e-5, departure, 0.0)
        return alpha * _mean(departure * uncertainty, weight) - gain

    _descend(
        loss,
        list(policy.parameters()),
        (
            batch.observations,
            batch.actions,
            batch.log_probs,
            batch.advantages,
            batch.uncertainty,
            batch.weight,
        ),
        orders,
        config.minibatch,
        config.learning_rate,
        config.gradient_clip,
        1e-5,
    )


class TorchEnsemble(nn.Module):
    """Weight-normalised members, stacked along the first axis."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        layers = [one for one in ensemble.layers if isinstance(one, WeightNorm)]
        if ensemble.form != PUBLISHED:
            raise UsageError(
                "The reference in PyTorch knows members with weight normalisation and "
                "ReLU alone: leave model.normalisation and model.activation out."
            )
        self.directions = _parameters([layer.direction for layer in layers])
        self.gains = _parameters([layer.gain for layer in layers])
        self.biases = _parameters([layer.bias for layer in layers])

    def forward(self, x: Tensor) -> Tensor:
        """Normalised state changes, [K, n, o], of every member's own rows [K, n, i]."""
        last = len(self.biases) - 1
        layers = zip(self.directions, self.gains, self.biases, strict=True)
        for number, (direction, gain, bias) in enumerate(layers):
            norm = torch.linalg.vector_norm(direction, dim=1)
            weight = direction * (gain / norm)[:, None]
            x = torch.baddbmm(bias[:, None], x, weight)
            if number < last:
                x = x.relu()
        return x


def _parameters(arrays: Sequence[object]) -> nn.ParameterList:
    return nn.ParameterList([nn.Parameter(tensor(array)) for array in arrays])


def fit_ensemble(
    ensemble: TorchEnsemble,
    inputs: Tensor,
    targets: Tensor,
    rows: Tensor,
    held_out: Tensor,
    config: ModelConfig,
    interval: int,
) -> Tensor:
    """Train in place, keep the weights that validated best, and give those losses [K].

    Args:
        ensemble: where to start from.
        inputs: [n, i] normalised states and actions.
        targets: [n, o] normalised state changes.
        rows: [steps, K, b] which rows each member learns from at each step.
        held_out: [K, v] which rows each member is validated on.
        config: learning rate and gradient clip.
        interval: steps between validations.
    """
    parameters = list(ensemble.parameters())
    optimiser = torch.optim.Adam(parameters, config.learning_rate, fused=True)
    best = [parameter.detach().clone() for parameter in parameters]
    best_loss = torch.full((len(held_out),), torch.inf)
    for step, batch in enumerate(rows, 1):
        optimiser.zero_grad()
        torch.autograd.backward(_member_losses(ensemble, inputs, targets, batch).sum())
        _clip_members(parameters, config.gradient_clip)
        optimiser.step()
        if step % interval == 0:
            with torch.no_grad():
                loss = _member_losses(ensemble, inputs, targets, held_out)
                better = loss <= best_loss
                best_loss = torch.where(better, loss, best_loss)
                for kept, parameter in zip(best, parameters, strict=True):
                    kept[better] = parameter[better]
    with torch.no_grad():
        for kept, parameter in zip(best, parameters, strict=True):
            parameter.copy_(kept)
    return best_loss


def _member_losses(
    ensemble: TorchEnsemble, inputs: Tensor, targets: Tensor, rows: Tensor
) -> Tensor:
    """Each member's mean squared error over its rows."""
    predicted: Tensor = ensemble(inputs[rows])
    return (predicted - targets[rows]).square().mean((1, 2))


def _clip_members(parameters: Sequence[nn.Parameter], largest: float) -> None:
    """Bound each member's own global gradient norm."""
    gradients = [
        parameter.grad for parameter in parameters if parameter.grad is not None
    ]
    norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients]
    norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    scale = (largest / norm).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.reshape((-1,) + (1,) * (gradient.ndim - 1)))


def pieces(work: Workload) -> dict[str, Work]:
    """Imagination, fit and update, each with the number of threads that suits it."""
    return {
        "imagination": with_best_threads(_imagination(work)),
        "fit": with_best_threads(_fit(work)),
        "update": with_best_threads(_update(work)),
    }


def _imagination(work: Workload) -> Work:
    state, rules = work.state, work.rules
    policy, value = TorchPolicy(state.policy), network(cast(MLP, state.value))
    dynamics, starts = TorchDynamics.of(work.dynamics), tensor(work.starts)
    shape = (rules.horizon, len(starts))

    def piece() -> object:
        noise = torch.randn(*shape, policy.log_std.shape[0])
        chosen = torch.randint(work.dynamics.members.count, shape)
        return imagine(policy, value, dynamics, rules, starts, noise, chosen)

    return piece


def _fit(work: Workload) -> Work:
    """Includes what the engine's fit does: stacking, splitting and normalising rows."""
    config, steps = work.config.model, work.fit_steps
    interval = config.validate_every_steps or steps

    def piece() -> object:
        dataset = build_dataset(
            work.episodes, config.members, config.validation_fraction, 0, 0
        )
        inputs, targets = regression(dataset, work.state.experience, False)
        training = [np.flatnonzero(~mask) for mask in dataset.validation]
        untouched = [np.flatnonzero(mask) for mask in dataset.validation]
        rows = torch.stack(
            [_rows(known, steps, config.batch_size) for known in training]
        )
        held_out = torch.stack(
            [_held_out(rows, config.validation_rows) for rows in untouched]
        )
        return fit_ensemble(
            TorchEnsemble(work.state.ensemble),
            tensor(inputs),
            tensor(targets),
            rows.transpose(0, 1),
            held_out,
            config,
            interval,
        )

    return piece


def _rows(known: np.ndarray, steps: int, size: int) -> torch.Tensor:
    """[steps, size] rows: one shuffled epoch after the other."""
    epochs = -(-steps * size // len(known))
    order = torch.cat([torch.randperm(len(known)) for _ in range(epochs)])
    return torch.from_numpy(known)[order[: steps * size]].reshape(steps, size)


def _held_out(rows: np.ndarray, most: int) -> torch.Tensor:
    return torch.from_numpy(rows)[torch.randperm(len(rows))[:most]]


def _update(work: Workload) -> Work:
    state, config = work.state, work.config
    batch = Samples.of(work.batch)

    def orders(epochs: int) -> torch.Tensor:
        size = len(batch.weight)
        return torch.stack([torch.randperm(size) for _ in range(epochs)])

    def piece() -> object:
        policy, value = TorchPolicy(state.policy), network(cast(MLP, state.value))
        improve_value(value, batch, orders(config.value.epochs), config.value)
        improve_policy(
            policy, batch, orders(config.policy.epochs), config.alpha, config.policy
        )
        return policy

    return piece
