"""One whole iteration of POMBU, slow and plain.

NumPy in float64, a loop for every trajectory, time step, member and minibatch, and
gradients by hand; nothing of the engine but its random draws, configs and contracts.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pombu.algorithms.pombu.config import POMBUConfig
from pombu.data import split_rows
from pombu.dynamics.config import ModelConfig, ReturnConfig
from pombu.envs import Episode, Task
from pombu.optim.ppo import shuffles
from pombu.rng import Keys

Network = list[Any]
"""Weight, bias, weight, bias, ..."""


def forward(network: Network, x: Any, bend: Any) -> tuple[Any, list[Any]]:
    """The output, and the input of every layer."""
    inputs = []
    for number in range(0, len(network), 2):
        inputs.append(x)
        x = x @ network[number] + network[number + 1]
        if number < len(network) - 2:
            x = bend(x)
    return x, inputs


def backward(network: Network, inputs: list[Any], gradient: Any, slope: Any) -> Network:
    """Gradients of the network's arrays; `slope` is the bend's, given its value."""
    gradients: Network = []
    for number, x in reversed(list(enumerate(inputs))):
        gradients = [x.T @ gradient, gradient.sum(0), *gradients]
        gradient = (gradient @ network[2 * number].T) * slope(x)
    return gradients


def tanh_slope(value: Any) -> Any:
    return 1.0 - value**2


def relu(x: Any) -> Any:
    return np.maximum(x, 0.0)


def relu_slope(value: Any) -> Any:
    return value > 0


class Adam:
    """Clip the gradient's norm, then Adam."""

    def __init__(self, parameters: list[Any], clip: float, eps: float = 1e-8) -> None:
        self.clip, self.eps, self.count = clip, eps, 0
        self.first = [np.zeros_like(p) for p in parameters]
        self.second = [np.zeros_like(p) for p in parameters]

    def step(self, parameters: list[Any], gradients: list[Any], rate: float) -> Any:
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
        self.count += 1
        moved = []
        for i, (parameter, gradient) in enumerate(
            zip(parameters, gradients, strict=True)
        ):
            gradient = gradient * min(1.0, self.clip / norm)
            self.first[i] = 0.9 * self.first[i] + 0.1 * gradient
            self.second[i] = 0.999 * self.second[i] + 0.001 * gradient**2
            first = self.first[i] / (1.0 - 0.9**self.count)
            second = self.second[i] / (1.0 - 0.999**self.count)
            moved.append(parameter - rate * first / (np.sqrt(second) + self.eps))
        return moved


def doubles(tree: Any) -> list[Any]:
    """The arrays of an engine's pytree, in its order, as float64."""
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]


def network_of(mlp: Any) -> Network:
    layers = zip(mlp.weights, mlp.biases, strict=True)
    return [np.asarray(x, np.float64) for layer in layers for x in layer]


@dataclass
class Policy:
    mean: Network
    log_std: Any

    def act(self, observation: Any, noise: Any) -> Any:
        mean, _ = forward(self.mean, observation, np.tanh)
        return mean + np.exp(self.log_std) * noise

    def log_prob(self, observation: Any, action: Any) -> Any:
        mean, _ = forward(self.mean, observation, np.tanh)
        z = (action - mean) / np.exp(self.log_std)
        return -(0.5 * z**2 + self.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def log_prob_gradient(self, observation: Any, action: Any, weight: Any) -> Any:
        """Gradient of sum_n weight_n log pi(a_n|s_n)."""
        mean, inputs = forward(self.mean, observation, np.tanh)
        z = (action - mean) / np.exp(self.log_std)
        by_mean = weight[:, None] * z / np.exp(self.log_std)
        by_log_std = (weight[:, None] * (z**2 - 1.0)).sum(0)
        return [*backward(self.mean, inputs, by_mean, tanh_slope), by_log_std]


def policy_of(policy: Any) -> Policy:
    return Policy(network_of(policy.mean), np.asarray(policy.log_std, np.float64))


@dataclass(frozen=True)
class Scale:
    mean: Any
    std: Any

    def normalise(self, x: Any) -> Any:
        return (x - self.mean) / self.std

    def restore(self, x: Any) -> Any:
        return x * self.std + self.mean


def scale_of(rows: Any) -> Scale:
    std = np.std(rows, 0)
    return Scale(np.mean(rows, 0), np.where(std > 1e-8, std, 1.0))


@dataclass(frozen=True)
class Dynamics:
    """Member networks (weights already normalised) and the units of the real data."""

    members: list[Network]
    observation: Scale
    action: Scale
    delta: Scale
    return_std: float

    def step(self, member: int, state: Any, action: Any) -> Any:
        x = np.concatenate(
            [self.observation.normalise(state), self.action.normalise(action)]
        )
        change, _ = forward(self.members[member], x, relu)
        return state + self.delta.restore(change)


def to_box(task: Task, action: Any) -> Any:
    low, high = np.array(task.action_box.low), np.array(task.action_box.high)
    return (low + high) / 2 + np.clip(action, -1.0, 1.0) * (high - low) / 2


def scale_reward(reward: float, dynamics: Dynamics, config: ReturnConfig) -> float:
    if config.reward_clip is not None:
        reward = min(max(reward, -config.reward_clip), config.reward_clip)
    return reward / dynamics.return_std if config.scale_rewards else reward


def imagine(
    policy: Policy,
    value: Network,
    dynamics: Dynamics,
    task: Task,
    config: ReturnConfig,
    starts: Any,
    member_weights: Any,
    key: Any,
) -> dict[str, Any]:
    """Virtual trajectories, one after the other."""
    horizon, number, members = task.horizon, len(starts), len(dynamics.members)
    noise, chosen = [], []
    for step_key in jax.random.split(key, horizon):
        action_key, member_key = jax.random.split(step_key)
        noise.append(jax.random.normal(action_key, (number, task.action_dim)))
        log_weights = jnp.log(member_weights)
        chosen.append(jax.random.categorical(member_key, log_weights, shape=(number,)))
    noise, chosen = np.asarray(noise, np.float64), np.asarray(chosen)
    contract: Any = task.contract
    out = {
        "observations": np.zeros((horizon, number, task.observation_dim)),
        "actions": np.zeros((horizon, number, task.action_dim)),
    }
    names = ("log_probs", "rewards", "values", "local", "continues", "weight", "raw")
    out |= {name: np.zeros((horizon, number)) for name in names}

    def value_of(state: Any) -> float:
        return float(
            forward(value, dynamics.observation.normalise(state), np.tanh)[0][0]
        )

    for n in range(number):
        state = np.asarray(starts[n], np.float64)
        for h in range(horizon):
            observation = dynamics.observation.normalise(state)
            action = policy.act(observation, noise[h, n])
            boxed = to_box(task, action)
            following, raw, rewards, targets, ends = [], [], [], [], []
            for k in range(members):
                after = dynamics.step(k, state, boxed)
                following.append(after)
                raw.append(float(contract.reward(state, boxed, after)))
                rewards.append(scale_reward(raw[-1], dynamics, config))
                ends.append(bool(contract.terminal(state, boxed, after)))
                later = 0.0 if ends[-1] else value_of(after)
                targets.append(rewards[-1] + config.gamma * later)
            drawn = chosen[h, n]
            out["observations"][h, n] = observation
            out["actions"][h, n] = action
            out["log_probs"][h, n] = policy.log_prob(observation, action)
            out["rewards"][h, n] = np.mean(rewards)
            out["values"][h, n] = value_of(state)
            out["local"][h, n] = np.var(targets)
            out["continues"][h, n] = not ends[drawn]
            out["weight"][h, n] = 1.0
            out["raw"][h, n] = np.mean(raw)
            if ends[drawn]:
                break
            state = following[drawn]
    return out


def targets(steps: dict[str, Any], config: ReturnConfig) -> dict[str, Any]:
    """Returns, advantages and sqrt(D), every trajectory backwards.

    Past the horizon they expect nothing, or what `beyond` says.
    """
    horizon, number = steps["rewards"].shape
    returns, advantages, variances = (np.zeros((horizon, number)) for _ in range(3))
    for n in range(number):
        advantage = variance = 0.0
        total = value_after = steps["beyond"][n] if config.bootstrap else 0.0
        for h in reversed(range(horizon)):
            reward, value = steps["rewards"][h, n], steps["values"][h, n]
            discount = config.gamma * steps["continues"][h, n]
            error = reward + discount * value_after - value
            advantage = error + discount * config.lam * advantage
            total = reward + discount * total
            variance = steps["local"][h, n] + config.gamma * discount * variance
            value_after = value
            advantages[h, n], variances[h, n] = advantage, variance
            returns[h, n] = total if config.lam == 1.0 else advantage + value
    if config.advantage_clip is not None:
        bound = config.advantage_clip
        advantages = np.clip(advantages, -bound, bound)
    counted = steps["weight"] > 0
    mean, std = advantages[counted].mean(), advantages[counted].std()
    if config.standardise_advantages:
        advantages = (advantages - mean) / std
    if config.variance_clip is not None:
        variances = np.minimum(variances, config.variance_clip)
    uncertainty = np.sqrt(variances)
    if config.uncertainty_units == "advantage":
        uncertainty = uncertainty / std
    return {"returns": returns, "advantages": advantages, "uncertainty": uncertainty}


def samples(steps: dict[str, Any], goals: dict[str, Any]) -> dict[str, Any]:
    """Steps that count as one list, time first."""
    return {name: x.reshape(-1, *x.shape[2:]) for name, x in {**steps, **goals}.items()}


def minibatches(orders: Any, size: int) -> Any:
    for order in orders:
        for first in range(0, len(order) - size + 1, size):
            yield order[first : first + size]


def improve_value(
    value: Network, adam: Adam, batch: dict[str, Any], orders: Any, size: int, rate: Any
) -> Network:
    for rows in minibatches(orders, size):
        weight = batch["weight"][rows] / max(batch["weight"][rows].sum(), 1.0)
        predicted, inputs = forward(value, batch["observations"][rows], np.tanh)
        error = predicted[:, 0] - batch["returns"][rows]
        gradient = backward(value, inputs, (2.0 * error * weight)[:, None], tanh_slope)
        value = adam.step(value, gradient, rate)
    return value


def improve_policy(
    policy: Policy,
    adam: Adam,
    batch: dict[str, Any],
    orders: Any,
    rate: float,
    alpha: float,
    config: Any,
) -> Policy:
    for rows in minibatches(orders, config.minibatch):
        part = {name: x[rows] for name, x in batch.items()}
        now = policy.log_prob(part["observations"], part["actions"])
        ratio = np.exp(now - part["log_probs"])
        advantage = part["advantages"]
        inside = np.where(
            advantage > 0, ratio < 1.0 + config.clip, ratio > 1.0 - config.clip
        )
        away = np.sign(ratio - 1.0) * (abs(ratio - 1.0) > 1e-5)
        gain = inside * advantage - alpha * away * part["uncertainty"]
        weight = part["weight"] / max(part["weight"].sum(), 1.0)
        gradient = policy.log_prob_gradient(
            part["observations"], part["actions"], -gain * ratio * weight
        )
        *mean, log_std = adam.step([*policy.mean, policy.log_std], gradient, rate)
        policy = Policy(mean, log_std)
    return Policy(policy.mean, np.maximum(policy.log_std, config.minimum_log_std))


def report(old: Policy, new: Policy, batch: dict[str, Any], clip: float) -> Any:
    """kl, L_clip and L_std over the whole batch."""
    before, _ = forward(old.mean, batch["observations"], np.tanh)
    after, _ = forward(new.mean, batch["observations"], np.tanh)
    gap = (before - after) / np.exp(new.log_std)
    spread = np.exp(2.0 * (old.log_std - new.log_std))
    kl = (new.log_std - old.log_std + 0.5 * (spread + gap**2 - 1.0)).sum(-1)
    now = new.log_prob(batch["observations"], batch["actions"])
    ratio, advantage = np.exp(now - batch["log_probs"]), batch["advantages"]
    limited = np.where(
        advantage > 0, np.minimum(1 + clip, ratio), np.maximum(1 - clip, ratio)
    )
    return {
        "kl": kl.mean(),
        "p_improve": ((limited - 1.0) * advantage).mean(),
        "penalty": (abs(ratio - 1.0) * batch["uncertainty"]).mean(),
        "uncertainty": batch["uncertainty"].mean(),
    }


def effective(member: list[Any]) -> Network:
    """W = g v / |v| for each layer of [direction, gain, bias, direction, ...]."""
    network = []
    for direction, gain, bias in zip(*[iter(member)] * 3, strict=True):
        norm = np.sqrt((direction**2).sum(0))
        network += [direction * (gain / norm), bias]
    return network


def fit_member(
    member: list[Any],
    inputs: Any,
    outputs: Any,
    validation: Any,
    config: ModelConfig,
    seed: list[int],
) -> tuple[list[Any], float]:
    """Train one member; returns the weights with the lowest validation loss."""
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(~validation)
    held_out = rng.permutation(np.flatnonzero(validation))[: config.validation_rows]
    epoch = math.ceil(len(rows) / config.batch_size)
    interval = config.validate_every * epoch
    if config.validate_every_steps is not None:
        interval = min(interval, config.validate_every_steps)
    longest = config.max_epochs * epoch
    if config.max_steps is not None:
        longest = min(longest, config.max_steps)
    adam = Adam(member, config.gradient_clip)
    waiting: list[int] = []
    best, best_loss, best_step, step = member, np.inf, 0, 0
    while step < longest and step - best_step < config.patience * epoch:
        for _ in range(min(interval, longest - step)):
            while len(waiting) < config.batch_size:
                waiting += list(rng.permutation(rows))
            batch, waiting = waiting[: config.batch_size], waiting[config.batch_size :]
            rate = config.learning_rate
            if config.final_learning_rate is not None:
                rate += (config.final_learning_rate - rate) * step / longest
            member = adam.step(
                member, fit_gradient(member, inputs[batch], outputs[batch]), rate
            )
            step += 1
        predicted, _ = forward(effective(member), inputs[held_out], relu)
        loss = float(((predicted - outputs[held_out]) ** 2).mean())
        if loss <= best_loss:
            best, best_loss, best_step = member, loss, step
    return best, best_loss


def fit_gradient(member: list[Any], inputs: Any, outputs: Any) -> list[Any]:
    """Of the mean squared error, back through the weight normalisation."""
    network = effective(member)
    predicted, layers = forward(network, inputs, relu)
    error = predicted - outputs
    by_weight = backward(network, layers, 2.0 * error / error.size, relu_slope)
    gradient = []
    for number, (direction, gain, _) in enumerate(
        zip(*[iter(member)] * 3, strict=True)
    ):
        weight, bias = by_weight[2 * number], by_weight[2 * number + 1]
        norm = np.sqrt((direction**2).sum(0))
        unit = direction / norm
        by_gain = (weight * unit).sum(0)
        gradient += [gain / norm * (weight - unit * by_gain), by_gain, bias]
    return gradient


@dataclass
class Reference:
    """A run of POMBU, from the engine's untrained networks."""

    task: Task
    config: POMBUConfig
    state: Any
    seed: int
    iteration: int = 0
    episodes: list[Episode] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.config
        self.policy = policy_of(self.state.policy)
        self.value = network_of(self.state.value)
        leaves = doubles(self.state.ensemble)
        self.members = [[x[k] for x in leaves] for k in range(config.model.members)]
        self.policy_adam = self.fresh_policy_adam()
        self.value_adam = Adam(self.value, config.value.gradient_clip)
        self.dynamics = self.learned_world()

    def fresh_policy_adam(self) -> Adam:
        parameters = [*self.policy.mean, self.policy.log_std]
        return Adam(parameters, self.config.policy.gradient_clip, eps=1e-5)

    def iterate(self) -> dict[str, Any]:
        config, keys = self.config, Keys(self.seed, self.iteration)
        if self.iteration < config.policy.reset_std_iterations:
            self.policy = Policy(self.policy.mean, np.zeros_like(self.policy.log_std))
        explorers = self.explore(keys)
        seeds = keys.episodes("collect", config.trajectories)
        key = keys.jax("collect")
        self.episodes += self.collect(
            explorers,
            seeds,
            lambda step: jax.random.split(
                jax.random.fold_in(key, step), len(explorers)
            ),
        )
        fitted = self.fit(keys)
        reports = [self.improve(keys, i) for i in range(config.updates)]
        seeds = keys.episodes("evaluate", 2 * config.evaluation_episodes)
        half = config.evaluation_episodes
        key = keys.jax("evaluate")
        stochastic = self.collect(
            [self.policy],
            seeds[:half],
            lambda step: jax.random.split(
                jax.random.fold_in(jax.random.fold_in(key, step), 0), 1
            ),
        )
        deterministic = self.collect([self.policy], seeds[half:], None)
        self.iteration += 1
        means = {key: np.mean([r[key] for r in reports]) for key in reports[0]}
        return means | {
            "return_model": reports[-1]["return_model"],
            "validation_loss": np.mean(fitted),
            "return_real": np.mean([e.rewards.sum() for e in stochastic]),
            "return_deterministic": np.mean([e.rewards.sum() for e in deterministic]),
        }

    def learned_world(self) -> Dynamics:
        """The members in the units of all real data so far."""
        task, clip = self.task, self.config.returns.reward_clip
        before = [e.observations[:-1] for e in self.episodes]
        deltas = [e.observations[1:] - e.observations[:-1] for e in self.episodes]
        returns = []
        for episode in self.episodes:
            total = 0.0
            for reward in reversed(episode.rewards):
                if clip is not None:
                    reward = min(max(reward, -clip), clip)
                total = float(reward) + self.config.returns.gamma * total
                returns.append(total)
        none = Scale(np.zeros(task.observation_dim), np.ones(task.observation_dim))
        if not self.episodes:
            return Dynamics([], none, none, none, 1.0)
        return Dynamics(
            [effective(member) for member in self.members],
            scale_of(np.concatenate(before).astype(np.float64)),
            scale_of(np.concatenate([e.actions for e in self.episodes]).astype(float)),
            scale_of(np.concatenate(deltas).astype(np.float64)),
            float(np.std(returns)),
        )

    def fit(self, keys: Keys) -> list[float]:
        model = self.config.model
        dynamics = self.learned_world()
        before = np.concatenate([e.observations[:-1] for e in self.episodes])
        after = np.concatenate([e.observations[1:] for e in self.episodes])
        actions = np.concatenate([e.actions for e in self.episodes])
        inputs = np.concatenate(
            [
                dynamics.observation.normalise(before),
                dynamics.action.normalise(actions),
            ],
            1,
        )
        outputs = dynamics.delta.normalise(after - before)
        lengths = [len(e) for e in self.episodes]
        validation = split_rows(
            lengths, model.members, model.validation_fraction, self.seed, 0
        )
        losses = []
        for k in range(model.members):
            self.members[k], loss = fit_member(
                self.members[k],
                inputs,
                outputs,
                validation[k],
                model,
                [*keys.numpy("fit"), k],
            )
            losses.append(loss)
        self.dynamics = self.learned_world()
        return losses

    def rate(self, config: Any) -> float:
        done = self.iteration / self.config.iterations
        return config.learning_rate * (1 - done) + config.final_learning_rate * done

    def improve(self, keys: Keys, i: int) -> dict[str, Any]:
        config, members = self.config, self.config.model.members
        number, shards = config.imagination.trajectories, config.imagination.shards
        contract: Any = self.task.contract
        starts = np.asarray(contract.initial(keys.jax("imagine start", i), number))
        parts = [
            imagine(
                self.policy,
                self.value,
                self.dynamics,
                self.task,
                config.returns,
                starts[shard * (number // shards) : (shard + 1) * (number // shards)],
                jnp.full(members, 1.0 / members),
                jax.random.fold_in(keys.jax("imagine", i), shard),
            )
            for shard in range(shards)
        ]
        steps = {name: np.concatenate([p[name] for p in parts], 1) for name in parts[0]}
        goals = targets(steps, config.returns)
        for h, (doubt, counts) in enumerate(
            zip(goals["uncertainty"], steps["weight"], strict=True)
        ):
            mean = (doubt * counts).sum() / max(counts.sum(), 1.0)
            goals["advantages"][h] -= config.kappa * (doubt - mean)
        batch = samples(steps, goals)
        size = len(batch["weight"])
        self.value = improve_value(
            self.value,
            self.value_adam,
            batch,
            shuffles(keys.numpy("value", i), config.value.epochs, size),
            config.value.minibatch,
            self.rate(config.value),
        )
        old = self.policy
        self.policy = improve_policy(
            old,
            self.policy_adam,
            batch,
            shuffles(keys.numpy("policy", i), config.policy.epochs, size),
            self.rate(config.policy),
            config.alpha,
            config.policy,
        )
        return report(old, self.policy, batch, config.policy.clip) | {
            "return_model": steps["raw"].sum() / number
        }

    def explore(self, keys: Keys) -> list[Policy]:
        """Exploration policies, each from the current one."""
        config = self.config
        if self.iteration == 0 or not config.exploration.policies:
            return [self.policy]
        contract: Any = self.task.contract
        policies = []
        for index in range(config.exploration.policies):
            number = config.exploration.trajectories
            steps = imagine(
                self.policy,
                self.value,
                self.dynamics,
                self.task,
                config.returns,
                np.asarray(contract.initial(keys.jax("explore start", index), number)),
                jax.random.dirichlet(
                    keys.jax("members", index), jnp.ones(config.model.members)
                ),
                jax.random.fold_in(keys.jax("explore", index), 0),
            )
            batch = samples(steps, targets(steps, config.returns))
            batch["advantages"] = (
                batch["advantages"] + config.beta * batch["uncertainty"]
            )
            orders = shuffles(
                keys.numpy("explore", index), config.policy.epochs, len(batch["weight"])
            )
            policies.append(
                improve_policy(
                    self.policy,
                    self.fresh_policy_adam(),
                    batch,
                    orders,
                    self.rate(config.policy),
                    0.0,
                    config.policy,
                )
            )
        return policies

    def collect(self, policies: list[Policy], seeds: list[int], draws: Any) -> Any:
        """Real episodes one after the other; `draws` gives a step's key per policy.

        Without it the policies do not draw.
        """
        rounds = math.ceil(len(seeds) / len(policies))
        env = self.task.make()
        scale = self.dynamics.observation
        episodes = []
        for number, seed in enumerate(seeds):
            turn, who = divmod(number, len(policies))
            observation, _ = env.reset(seed=seed)
            observations, actions, rewards = [observation], [], []
            for step in range(self.task.horizon):
                noise = np.zeros(self.task.action_dim)
                if draws is not None:
                    shape = (rounds, self.task.action_dim)
                    noise = jax.random.normal(draws(step)[who], shape)[turn]
                    noise = np.asarray(noise, np.float64)
                action = policies[who].act(scale.normalise(observation), noise)
                boxed = to_box(self.task, action).astype(np.float32)
                observation, reward, _, _, _ = env.step(boxed)
                observations.append(observation)
                actions.append(boxed)
                rewards.append(reward)
            episodes.append(
                Episode(
                    np.stack(observations).astype(np.float32),
                    np.stack(actions),
                    np.asarray(rewards, np.float32),
                    False,
                )
            )
        env.close()
        return episodes
