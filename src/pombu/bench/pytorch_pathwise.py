"""DHMBPO's update written plainly in PyTorch: what one would otherwise write.

Eager and float32, and no straw man: members and critics share one batched product per
layer, all noise of a rollout is drawn at once, gradients are asked for only where they
are used, and Adam and the targets' step are fused. The same weights and draws give the
same update as the engine's, which the tests check. The task must never end early.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from pombu.algorithms.dhmbpo.config import DHMBPOConfig
from pombu.algorithms.dhmbpo.learner import Learner
from pombu.algorithms.soft_actor_critic import Imagination, Networks
from pombu.algorithms.soft_learner import SoftState
from pombu.bench.pytorch import tensor
from pombu.bench.workload import Work, with_best_threads
from pombu.dynamics.ensemble import NORM_EPS, Layers
from pombu.dynamics.gaussian import HomoscedasticMembers
from pombu.nn import LEAST_STD, SquashedPolicy

_LOG_2PI = math.log(2.0 * math.pi)
_LEAST_RANGE = 1e-3


class Stacked:
    """Networks of one shape side by side, with layer normalisation and SiLU."""

    def __init__(self, layers: Layers, learns: bool) -> None:
        self.weights = [tensor(w).requires_grad_(learns) for w in layers.weights]
        self.biases = [
            tensor(b)[:, None].contiguous().requires_grad_(learns)
            for b in layers.biases
        ]

    @property
    def parameters(self) -> list[Tensor]:
        """All of them."""
        return [*self.weights, *self.biases]

    def __call__(self, x: Tensor, which: Tensor | None = None) -> Tensor:
        """Outputs of all, or of some, for rows [k, n, i] of their own."""
        last = len(self.weights) - 1
        pairs = zip(self.weights, self.biases, strict=True)
        for number, (weight, bias) in enumerate(pairs):
            if which is not None:
                weight, bias = weight[which], bias[which]
            x = torch.baddbmm(bias, x, weight)
            if number < last:
                x = functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS)
                x = functional.silu(x)
        return x


class Actor:
    """The tanh-Gaussian policy."""

    def __init__(self, policy: SquashedPolicy) -> None:
        net = policy.network
        self.weights = [tensor(w).requires_grad_() for w in net.weights]
        self.biases = [tensor(b).requires_grad_() for b in net.biases]

    @property
    def parameters(self) -> list[Tensor]:
        """All of them."""
        return [*self.weights, *self.biases]

    def sample(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions that lie so many standard deviations off the mean before tanh."""
        last = len(self.weights) - 1
        pairs = zip(self.weights, self.biases, strict=True)
        for number, (weight, bias) in enumerate(pairs):
            x = torch.addmm(bias, x, weight)
            x = functional.silu(x) if number < last else x
        mean, free_std = x.chunk(2, -1)
        std = functional.softplus(free_std) + LEAST_STD
        free = mean + std * noise
        density = -0.5 * (noise.square() + _LOG_2PI) - std.log()
        squashing = 2.0 * (math.log(2.0) - free - functional.softplus(-2.0 * free))
        return free.tanh(), (density - squashing).sum(-1)


class PathwiseUpdate:
    """Networks, optimisers and the imagination they are updated in."""

    def __init__(
        self,
        networks: Networks,
        imagination: Imagination,
        target_entropy: float,
        config: DHMBPOConfig,
    ) -> None:
        settings, dynamics = config.actor_critic, imagination.dynamics
        members, contract = dynamics.members, dynamics.contract
        assert isinstance(members, HomoscedasticMembers)
        assert contract is not None, "the reference knows no learned rewards"
        self.config, self.target_entropy = config, target_entropy
        self.contract = contract
        self.actor = Actor(networks.policy)
        self.critics = Stacked(networks.critics.layers, True)
        self.targets = Stacked(networks.targets.layers, False)
        self.members = Stacked(members.layers, False)
        self.noise_scale = tensor(members.log_std).exp()[:, None]
        self.log_temperature = tensor(networks.log_temperature).requires_grad_()
        self.bounds = tensor(networks.bounds)
        low, high = (
            torch.tensor(imagination.box.low),
            torch.tensor(imagination.box.high),
        )
        self.middle, self.half = (high + low) / 2, (high - low) / 2
        self.units = {
            name: (tensor(unit.mean), tensor(unit.std))
            for name, unit in (
                ("observation", dynamics.observation),
                ("action", dynamics.action),
                ("delta", dynamics.delta),
            )
        }
        self.adams = [
            torch.optim.Adam(parameters, settings.learning_rate, fused=True)
            for parameters in (
                self.critics.parameters,
                self.actor.parameters,
                [self.log_temperature],
            )
        ]

    def _normal(self, x: Tensor, unit: str) -> Tensor:
        mean, std = self.units[unit]
        return (x - mean) / std

    def _values(
        self, nets: Stacked, x: Tensor, action: Tensor, which: Tensor | None = None
    ) -> Tensor:
        """Q of all critics, or of some."""
        rows = torch.cat([x, action], -1)
        count = len(nets.weights[0]) if which is None else len(which)
        output = nets(rows.expand(count, *rows.shape), which)[..., 0]
        low, high = self.bounds
        values: Tensor = (high + low) / 2 + (high - low) / 2 * output
        return values

    def _rollout(
        self, starts: Tensor, action_noise: Tensor, state_noise: Tensor
    ) -> tuple[Tensor, ...]:
        """States, actions, log-probabilities, rewards and masks, time first."""
        count = len(self.noise_scale)
        state, alive = starts, torch.ones(len(starts))
        states, actions, log_probs, rewards, lives = [], [], [], [], []
        for number, draw in enumerate(action_noise):
            normal = self._normal(state, "observation")
            action, log_prob = self.actor.sample(normal, draw)
            states.append(state)
            actions.append(action)
            log_probs.append(log_prob)
            lives.append(alive)
            if number == len(state_noise):
                break
            boxed = self.middle + action * self.half
            x = torch.cat([normal, self._normal(boxed, "action")], -1)
            change = self.members(x.reshape(count, -1, x.shape[-1]))
            change = change + state_noise[number] * self.noise_scale
            mean, std = self.units["delta"]
            following = state + (change.reshape(state.shape) * std + mean)
            spread = self._normal(following, "observation").abs()
            lost = ~(spread <= self.config.runaway).all(-1)
            reward = self.contract.reward(state, boxed, following)
            rewards.append(torch.where(lost, 0.0, reward))
            alive = (alive * ~lost).detach()
            state = torch.where(lost[:, None], state, following)
        return tuple(map(torch.stack, (states, actions, log_probs, rewards, lives)))

    def __call__(
        self,
        starts: Tensor,
        action_noise: Tensor,
        state_noise: Tensor,
        judges: Tensor,
        first: bool,
    ) -> None:
        """One update, in place.

        Args:
            starts: [b, o] states that the rollout begins in.
            action_noise: [H + 1, b, a] standard normal draws.
            state_noise: [H, K, b / K, o] standard normal draws.
            judges: target critics whose least value counts.
            first: whether it sets the bounds of Q.
        """
        settings, gamma = self.config.actor_critic, self.config.gamma
        temperature = self.log_temperature.detach().exp()
        # 1. The rollout.
        states, actions, log_probs, rewards, alive = self._rollout(
            starts, action_noise, state_noise
        )
        discounts = gamma ** torch.arange(len(alive), dtype=torch.float32)
        weights = discounts[:, None] * alive

        def expanded(tail: Tensor) -> Tensor:
            entropy = -temperature * (weights * log_probs)[1:].sum(0)
            return (weights[:-1] * rewards).sum(0) + entropy + weights[-1] * tail

        # 2. Critics, and bounds of Q.
        with torch.no_grad():
            soft = rewards - temperature * log_probs[:-1]
            share = settings.bound_quantile
            low, high = soft.quantile(torch.tensor([share, 1.0 - share]))
            high = torch.maximum(high, low + _LEAST_RANGE)
            found = torch.stack([low, high]) / (1.0 - gamma)
            rate = 1.0 if first else settings.bound_rate
            self.bounds = self.bounds + rate * (found - self.bounds)
            last = self._normal(states[-1], "observation")
            tails = self._values(self.targets, last, actions[-1], judges)
            tail = torch.clamp(tails.amin(0), self.bounds[0], self.bounds[1])
            target = expanded(tail)
            start = self._normal(starts, "observation")
        unit = (self.bounds[1] - self.bounds[0]) / 2
        values = self._values(self.critics, start, actions[0].detach())
        loss = ((values - target) / unit).square().mean(-1).sum()
        self._step(0, loss, self.critics.parameters)
        # 3. The actor, through the rollout.
        end = self._normal(states[-1], "observation")
        values = self._values(self.critics, end, actions[-1])
        value = expanded(values.mean(0)) - temperature * log_probs[0]
        self._step(1, -value.mean(), self.actor.parameters)
        # 4. The temperature, and the targets.
        gap = -log_probs[0].detach().mean() - self.target_entropy
        self._step(2, self.log_temperature.exp() * gap, [self.log_temperature])
        with torch.no_grad():
            torch._foreach_lerp_(
                self.targets.parameters, self.critics.parameters, settings.tau
            )

    def _step(self, number: int, loss: Tensor, parameters: list[Tensor]) -> None:
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.adams[number].step()


def piece(learner: Learner, state: SoftState, count: int) -> Work:
    """So many updates."""
    config, task = learner.config, learner.task
    reference = PathwiseUpdate(
        learner.networks(state),
        learner.imagination(state),
        learner.target_entropy,
        config,
    )
    batch, steps = config.batch_size, config.training_steps
    members, critics = config.model.members, config.actor_critic.critics
    mean, std = reference.units["observation"]
    pool = mean + 0.1 * std * torch.randn(4096, task.observation_dim)

    def updates() -> object:
        for _ in range(count):
            reference(
                pool[torch.randint(len(pool), (batch,))],
                torch.randn(steps + 1, batch, task.action_dim),
                torch.randn(steps, members, batch // members, task.observation_dim),
                torch.randperm(critics)[: config.actor_critic.subset],
                False,
            )
        return reference.bounds

    return with_best_threads(updates)
