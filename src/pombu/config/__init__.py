"""What a run can be told: frozen dataclasses, one file per algorithm."""

from pombu.config.parts import Draw as Draw
from pombu.config.parts import ExplorationConfig as ExplorationConfig
from pombu.config.parts import ImaginationConfig as ImaginationConfig
from pombu.config.parts import ModelConfig as ModelConfig
from pombu.config.parts import PolicyConfig as PolicyConfig
from pombu.config.parts import Precision as Precision
from pombu.config.parts import ReturnConfig as ReturnConfig
from pombu.config.parts import ValueConfig as ValueConfig
from pombu.config.pombu import POMBUConfig as POMBUConfig
from pombu.config.trpo import TrustRegionConfig as TrustRegionConfig
