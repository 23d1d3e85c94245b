"""Trust region policy optimisation (Schulman et al., 2015).

A step maximises an objective as far as a divergence from the present parameters allows.
Its direction is the natural gradient F^-1 g, found by conjugate gradients that see the
Fisher matrix F only through its products with vectors; its length is what the quadratic
model of the divergence permits, shortened until the true divergence agrees and the
objective has risen. Objective and divergence are any functions of the parameters.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from pombu.nn import GaussianPolicy, kl
from pombu.optim import objectives
from pombu.optim.config import TrustRegionConfig
from pombu.optim.ppo import Batch, likelihood_ratio
from pombu.parallel import jit

Parameters = TypeVar("Parameters")
Vector = Float[Array, " p"]
Scalar = Float[Array, ""]


class StepReport(NamedTuple):
    """What became of a step."""

    kl: Scalar
    """Divergence of the accepted parameters; 0 when none were."""
    gain: Scalar
    """Rise of the objective."""
    fraction: Scalar
    """Share of the full step that was taken; 0 when none was accepted."""


def conjugate_gradient(
    product: Callable[[Vector], Vector], target: Vector, iterations: int
) -> Vector:
    """Solve A x = target for a positive definite A, given v -> A v.

    A residual of 0 stays where it is, so that too many iterations do no harm.
    """

    def step(
        _: Array, carry: tuple[Vector, Vector, Vector, Scalar]
    ) -> tuple[Vector, Vector, Vector, Scalar]:
        x, residual, direction, square = carry
        image = product(direction)
        length = _divide(square, direction @ image)
        x = x + length * direction
        residual = residual - length * image
        new_square = residual @ residual
        direction = residual + _divide(new_square, square) * direction
        return x, residual, direction, new_square

    begin = (jnp.zeros_like(target), target, target, target @ target)
    solution: Vector = jax.lax.fori_loop(0, iterations, step, begin)[0]
    return solution


def trust_region_step(
    parameters: Parameters,
    objective: Callable[[Parameters], Scalar],
    divergence: Callable[[Parameters], Scalar],
    config: TrustRegionConfig,
) -> tuple[Parameters, StepReport]:
    """One step up `objective` with `divergence` at most max_kl times its tolerance.

    Args:
        parameters: where to start from; the divergence and its gradient are 0 there.
        objective: what to raise.
        divergence: from `parameters` to the ones given.
        config: the region, the solver and the line search.
    """
    start, restore = ravel_pytree(parameters)
    before, gradient = jax.value_and_grad(lambda x: objective(restore(x)))(start)
    # Linearised once, so that each product repeats only what depends on the vector.
    _, hessian = jax.linearize(jax.grad(lambda x: divergence(restore(x))), start)

    def fisher(vector: Vector) -> Vector:
        product: Vector = hessian(vector) + config.damping * vector
        return product

    natural = conjugate_gradient(fisher, gradient, config.conjugate_gradients)
    curvature = natural @ fisher(natural)
    full_step = jnp.sqrt(_divide(2.0 * config.max_kl, curvature)) * natural
    promised = gradient @ full_step

    def attempt(number: Array) -> StepReport:
        fraction = config.backtrack**number
        candidate = restore(start + fraction * full_step)
        return StepReport(
            divergence(candidate), objective(candidate) - before, fraction
        )

    def accepted(report: StepReport) -> Array:
        # Written so that a NaN is refused.
        within = report.kl <= config.max_kl * config.kl_tolerance
        least = config.accept_ratio * report.fraction * promised
        good: Array = within & (report.gain > 0) & (report.gain >= least)
        return good

    def goes_on(search: tuple[Array, StepReport]) -> Array:
        tries, report = search
        return ~accepted(report) & (tries < config.backtracks)

    def shorten(search: tuple[Array, StepReport]) -> tuple[Array, StepReport]:
        tries, _ = search
        return tries + 1, attempt(tries)

    first = (jnp.ones((), jnp.int32), attempt(jnp.zeros((), jnp.int32)))
    _, report = jax.lax.while_loop(goes_on, shorten, first)
    success = accepted(report)
    report = StepReport(*(jnp.where(success, x, 0.0) for x in report))
    stepped: Parameters = restore(
        jnp.where(success, start + report.fraction * full_step, start)
    )
    return stepped, report


@partial(jit, static_argnames=("config", "bonus"))
def improve_policy(
    policy: GaussianPolicy,
    batch: Batch,
    config: TrustRegionConfig,
    bonus: Callable[[GaussianPolicy, Batch], Scalar] | None = None,
    bonus_weight: float | Scalar = 0.0,
) -> tuple[GaussianPolicy, StepReport]:
    """A TRPO step on L_exp (equation 4), with an optional bonus added to it."""

    def objective(candidate: GaussianPolicy) -> Scalar:
        ratio = likelihood_ratio(candidate, batch)
        gain = objectives.surrogate(ratio, batch.advantages, batch.weight)
        return gain if bonus is None else gain + bonus_weight * bonus(candidate, batch)

    def divergence(candidate: GaussianPolicy) -> Scalar:
        distance = kl(policy, candidate, batch.observations)
        return objectives.weighted_mean(distance, batch.weight)

    return trust_region_step(policy, objective, divergence, config)


def _divide(numerator: Any, denominator: Scalar) -> Scalar:
    """0 where the denominator is not positive."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1.0), 0.0)
