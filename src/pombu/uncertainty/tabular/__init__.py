"""The paper's theory on finite MDPs, exact and in float64 (plain NumPy).

A posterior over MDPs, the true variance ``D[Q]`` it implies for a policy's Q-values,
and three uncertainty Bellman equations that bound it: the paper's ``U``, the older
``B`` of O'Donoghue et al. (2018), and the exact ``W`` of Luis et al. (2023). Under the
paper's assumptions 1 and 2, ``D = W <= U``; with assumption 3 also ``U <= B``.
"""

from pombu.uncertainty.tabular.bounds import (
    backup,
    exact_bound,
    exact_local,
    pombu_bound,
    pombu_local,
    ube_bound,
    ube_local,
)
from pombu.uncertainty.tabular.posteriors import (
    DirichletPosterior,
    Posterior,
    TabularPosterior,
    chain,
)
from pombu.uncertainty.tabular.variance import (
    Assumptions,
    assumptions,
    posterior_variance,
)

__all__ = [
    "Assumptions",
    "DirichletPosterior",
    "Posterior",
    "TabularPosterior",
    "assumptions",
    "backup",
    "chain",
    "exact_bound",
    "exact_local",
    "pombu_bound",
    "pombu_local",
    "posterior_variance",
    "ube_bound",
    "ube_local",
]
