"""Real data: episodes and their files, the dataset, normalisers, logged data."""

from pombu.data.dataset import Dataset as Dataset
from pombu.data.dataset import Experience as Experience
from pombu.data.dataset import Moments as Moments
from pombu.data.dataset import Normaliser as Normaliser
from pombu.data.dataset import Transitions as Transitions
from pombu.data.dataset import build_dataset as build_dataset
from pombu.data.dataset import discounted_returns as discounted_returns
from pombu.data.dataset import empty_moments as empty_moments
from pombu.data.dataset import learn_from as learn_from
from pombu.data.dataset import merge as merge
from pombu.data.dataset import most_recent as most_recent
from pombu.data.dataset import moved as moved
from pombu.data.dataset import no_experience as no_experience
from pombu.data.dataset import regression as regression
from pombu.data.dataset import returns_within as returns_within
from pombu.data.dataset import split_rows as split_rows
from pombu.data.dataset import transitions as transitions
from pombu.data.episodes import EpisodeStore as EpisodeStore
from pombu.data.logged import read_logged as read_logged
from pombu.data.logged import write_logged as write_logged
