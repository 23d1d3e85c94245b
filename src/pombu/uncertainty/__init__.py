"""How uncertain a Q-value is: Algorithm 1, the exact tabular theory, calibration.

The names below load on first use, so `pombu.uncertainty.tabular`, which is plain NumPy
in float64, never imports JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pombu.uncertainty.algorithm1 import (
        local_uncertainty,
        propagate,
        q_uncertainty,
    )
    from pombu.uncertainty.calibration import expected_z_squared, variance_factor
    from pombu.uncertainty.ensembles import (
        Diagnosis,
        LastLayerLaplace,
        diagnose,
        estimate,
        gaussian_member,
        last_layer_laplace,
    )
    from pombu.uncertainty.recalibration import Recalibration

_HOME = {
    "Diagnosis": "ensembles",
    "LastLayerLaplace": "ensembles",
    "Recalibration": "recalibration",
    "diagnose": "ensembles",
    "estimate": "ensembles",
    "expected_z_squared": "calibration",
    "gaussian_member": "ensembles",
    "last_layer_laplace": "ensembles",
    "local_uncertainty": "algorithm1",
    "propagate": "algorithm1",
    "q_uncertainty": "algorithm1",
    "variance_factor": "calibration",
}

__all__ = [
    "Diagnosis",
    "LastLayerLaplace",
    "Recalibration",
    "diagnose",
    "estimate",
    "expected_z_squared",
    "gaussian_member",
    "last_layer_laplace",
    "local_uncertainty",
    "propagate",
    "q_uncertainty",
    "variance_factor",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
