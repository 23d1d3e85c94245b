"""Learned worlds: the weight-normalised ensemble and its fit."""

from pombu.models.ensemble import Ensemble as Ensemble
from pombu.models.ensemble import Layers as Layers
from pombu.models.ensemble import init_ensemble as init_ensemble
from pombu.models.ensemble import materialise as materialise
from pombu.models.ensemble import predict as predict
from pombu.models.fit import FitReport as FitReport
from pombu.models.fit import fit as fit
