"""Point2D with a region about which learned models are misled, each to its own degree.

Inside a disc every member learns that pushing outwards throws the point towards the
origin; how far differs from member to member, and in truth nothing of the kind happens.
On average the mirage is attractive, so only the members' disagreement gives it away.
Everything else is supervised: actor and critics are fitted to the optimal policy and to
its true values, so that what remains is the effect of the weighting or of kappa.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pombu.actor_critic import ADAM, model_loss
from pombu.algorithms import pets
from pombu.config import PETSConfig, STEVEConfig
from pombu.data import Transitions, learn_from
from pombu.envs import Episode, Task, collect
from pombu.envs.point import ACTION_BOUND
from pombu.expansion import ActorCritic, ExpansionModel, everyone
from pombu.models import fit_gaussian, predict
from pombu.randomness import Keys
from pombu.workers import jit

CENTRE = np.array([1.0, 1.0], np.float32)
RADIUS = 0.5
THROWS = (0.0, 0.4, 0.8, 1.2, 1.6)
"""How far each member throws the point at full push; of four, none has the last."""
REACH = 2.5


@dataclass(frozen=True)
class Sample:
    """Made-up steps in a member's eyes."""

    states: np.ndarray
    actions: np.ndarray
    """In the environment's units."""
    following: np.ndarray
    rewards: np.ndarray


def inside(states: np.ndarray) -> np.ndarray:
    """Which states lie in the misleading region."""
    found: np.ndarray = np.linalg.norm(states - CENTRE, axis=-1) < RADIUS
    return found


def believed(states: np.ndarray, actions: np.ndarray, throw: float) -> np.ndarray:
    """The next states that a member with this throw is taught."""
    outward = CENTRE / np.linalg.norm(CENTRE)
    push = np.maximum(actions @ outward, 0.0) / ACTION_BOUND
    thrown = np.where(inside(states), throw * push, 0.0)
    moved: np.ndarray = states + actions - thrown[:, None] * outward
    return moved.astype(np.float32)


def sample(number: int, throw: float, rng: np.random.Generator) -> Sample:
    """Steps from all over the plane, a third of them in the region."""
    states = rng.uniform(-REACH, REACH, (number, 2)).astype(np.float32)
    within = rng.uniform(-RADIUS, RADIUS, (number // 3, 2)).astype(np.float32)
    states[: number // 3] = CENTRE + within
    actions = rng.uniform(-ACTION_BOUND, ACTION_BOUND, (number, 2)).astype(np.float32)
    following = believed(states, actions, throw)
    return Sample(states, actions, following, -(following**2).sum(-1))


def misled_planner(config: PETSConfig, task: Task, steps: int, seed: int) -> pets.State:
    """PETS's state with members that learned from their own beliefs, and a V."""
    # Whatever kappa it is to plan with: PETS without one trains no V.
    learner = pets.Learner(task, replace(config, kappa=1.0))
    state = learner.init(seed)
    rng = np.random.default_rng([seed, 1])
    real = collect(task, lambda seen, _: rng.uniform(-1, 1, seen.shape), range(20))
    experience = learn_from(state.experience, real, config.gamma)
    members = []
    for number, throw in enumerate(THROWS[: config.model.members]):
        own = sample(steps, throw, rng)
        inputs = np.concatenate(
            [
                (own.states - experience.observation.mean) / experience.observation.std,
                (own.actions - experience.action.mean) / experience.action.std,
            ],
            1,
        )
        targets = own.following - own.states
        if config.model.normalise_targets:
            targets = (targets - experience.delta.mean) / experience.delta.std
        alone, memory = jax.tree.map(
            lambda leaf, number=number: leaf[number][None],
            (state.ensemble, state.ensemble_optimiser),
        )
        fitted, _, _ = fit_gaussian(
            alone,
            memory,
            inputs,
            targets,
            config.model,
            steps,
            (seed, number),
            learner.workers,
        )
        members.append(fitted)
    ensemble = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *members)
    known = pets.State(
        **{**vars(state), "ensemble": ensemble, "experience": experience}
    )
    judged, _ = learner.improve(known, _optimal_episodes(task), Keys(seed, 0))
    return judged


def optimal(observations: np.ndarray) -> np.ndarray:
    """Straight to the origin, as fast as the box allows, in policy space."""
    return np.clip(-observations / ACTION_BOUND, -1.0, 1.0)


def optimal_values(states: np.ndarray, gamma: float, steps: int) -> np.ndarray:
    """What the optimal policy earns from states on, discounted."""
    total, place = np.zeros(len(states)), states.astype(np.float64)
    for step in range(steps):
        place = place + ACTION_BOUND * optimal(place)
        total -= gamma**step * (place**2).sum(-1)
    return total


def misled_model(
    model: ExpansionModel, config: STEVEConfig, steps: int, rng: np.random.Generator
) -> ExpansionModel:
    """STEVE's models, each member trained on its own belief."""
    share = config.batch_size // config.model.members
    optimiser = ADAM.init(model)

    @jit
    def step(model: ExpansionModel, optimiser: Any, real: Transitions) -> Any:
        gradient = jax.grad(model_loss)(model, real, config)
        direction, optimiser = ADAM.update(gradient, optimiser)
        rate = config.model.learning_rate
        return jax.tree.map(lambda w, d: w - rate * d, model, direction), optimiser

    for _ in range(steps):
        parts = [sample(share, throw, rng) for throw in THROWS[: config.model.members]]
        model, optimiser = step(model, optimiser, as_transitions(parts))
    return model


def as_transitions(parts: list[Sample]) -> Transitions:
    """Samples end to end, with actions in policy space; nothing ends."""
    rows = [
        np.concatenate([getattr(p, name) for p in parts]) for name in vars(parts[0])
    ]
    states, actions, following, rewards = map(jnp.asarray, rows)
    ones = jnp.ones(len(rewards))
    return Transitions(
        states, actions / ACTION_BOUND, following, rewards, ones, 0.0 * ones
    )


def taught(
    networks: ActorCritic,
    steps: int,
    gamma: float,
    noise: float,
    rate: float,
    rng: np.random.Generator,
) -> ActorCritic:
    """An actor fitted to the optimal policy, and critics to its values plus noise.

    Each critic errs by a smooth random function of its own, of the given size.
    """
    waves = rng.normal(size=(networks.critics.biases[0].shape[0], 2, 2))
    phases = rng.uniform(0, 2 * np.pi, (len(waves), 2))
    optimiser = ADAM.init(networks)

    def loss(networks: ActorCritic, states: Any, actions: Any, goals: Any) -> Any:
        steered = jnp.tanh(predict(networks.actor, states))
        best = jnp.clip(-states / ACTION_BOUND, -1.0, 1.0)
        pair = jnp.concatenate([states, actions], -1)
        said = everyone(networks.critics, pair, "float32")[..., 0]
        return jnp.mean((steered - best) ** 2) + jnp.mean((said - goals) ** 2)

    @jit
    def step(networks: ActorCritic, optimiser: Any, *batch: Any) -> Any:
        direction, optimiser = ADAM.update(jax.grad(loss)(networks, *batch), optimiser)
        return jax.tree.map(lambda w, d: w - rate * d, networks, direction), optimiser

    for _ in range(steps):
        states = rng.uniform(-REACH, REACH, (256, 2)).astype(np.float32)
        actions = rng.uniform(-1, 1, (256, 2)).astype(np.float32)
        after = states + ACTION_BOUND * actions
        goals = -(after**2).sum(-1) + gamma * optimal_values(after, gamma, 60)
        errors = np.sin(states @ waves + phases[:, None]).sum(-1)
        batch = (states, actions, (goals + noise * errors).astype(np.float32))
        networks, optimiser = step(networks, optimiser, *batch)
    return networks


def _optimal_episodes(task: Task) -> list[Episode]:
    return collect(task, lambda seen, _: optimal(seen), range(50))
