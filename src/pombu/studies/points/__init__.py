"""Appendix D.1: errors and uncertainties of Q in the 2D- and 3D-point environments."""

from pombu.studies.points.experiment import run as run
from pombu.studies.points.outcome import FLAT as FLAT
from pombu.studies.points.outcome import TIMED as TIMED
from pombu.studies.points.outcome import Outcome as Outcome
from pombu.studies.points.outcome import stage_title as stage_title
from pombu.studies.points.settings import PROFILES as PROFILES
from pombu.studies.points.settings import PointSettings as PointSettings
from pombu.studies.points.storage import restore as restore
