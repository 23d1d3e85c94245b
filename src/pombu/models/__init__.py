"""Learned worlds: deterministic and Gaussian ensembles, and their fits."""

from pombu.models.ensemble import Ensemble as Ensemble
from pombu.models.ensemble import Form as Form
from pombu.models.ensemble import Layers as Layers
from pombu.models.ensemble import init_ensemble as init_ensemble
from pombu.models.ensemble import materialise as materialise
from pombu.models.ensemble import predict as predict
from pombu.models.fit import FitReport as FitReport
from pombu.models.fit import fit as fit
from pombu.models.gaussian import GaussianEnsemble as GaussianEnsemble
from pombu.models.gaussian import fit_gaussian as fit_gaussian
from pombu.models.gaussian import gaussian_adam as gaussian_adam
from pombu.models.gaussian import init_gaussian as init_gaussian
from pombu.models.gaussian import predict_gaussian as predict_gaussian
from pombu.models.windows import Unroll as Unroll
