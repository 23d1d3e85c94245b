"""MEPPO's presets: POMBU without its uncertainty.

No penalty, no bonus, and the policy itself collects the real data: the 8e7 imagined
samples of the paper's Table 1.
"""

from dataclasses import replace

from pombu.algorithms.pombu import presets as pombu
from pombu.algorithms.pombu.config import POMBUConfig


def paper(task: str, horizon: int | None) -> POMBUConfig:
    """The paper's values."""
    return _without_uncertainty(pombu.paper(task, horizon))


def fast(task: str, horizon: int | None) -> POMBUConfig:
    """What POMBU's `fast` uses."""
    return _without_uncertainty(pombu.fast(task, horizon))


def smoke(task: str, horizon: int | None) -> POMBUConfig:
    """Tiny."""
    return _without_uncertainty(pombu.smoke(task, horizon))


def _without_uncertainty(config: POMBUConfig) -> POMBUConfig:
    return replace(
        config,
        alpha=0.0,
        minimum_kl=None,
        beta=0.0,
        tail=replace(config.tail, use=False),
        exploration=replace(config.exploration, policies=0),
    )
