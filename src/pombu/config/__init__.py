"""What a run can be told: frozen dataclasses, one file per algorithm."""

from pombu.config.mbmpo import MBMPOConfig as MBMPOConfig
from pombu.config.metrpo import METRPOConfig as METRPOConfig
from pombu.config.metrpo import StopRuleConfig as StopRuleConfig
from pombu.config.parts import Draw as Draw
from pombu.config.parts import ExplorationConfig as ExplorationConfig
from pombu.config.parts import ImaginationConfig as ImaginationConfig
from pombu.config.parts import ModelConfig as ModelConfig
from pombu.config.parts import PolicyConfig as PolicyConfig
from pombu.config.parts import Precision as Precision
from pombu.config.parts import ReturnConfig as ReturnConfig
from pombu.config.parts import ValueConfig as ValueConfig
from pombu.config.pets import GaussianModelConfig as GaussianModelConfig
from pombu.config.pets import PETSConfig as PETSConfig
from pombu.config.pets import PlannerConfig as PlannerConfig
from pombu.config.pets import Propagation as Propagation
from pombu.config.pombu import POMBUConfig as POMBUConfig
from pombu.config.ppo import PPOConfig as PPOConfig
from pombu.config.sac import SACConfig as SACConfig
from pombu.config.slbo import MultiStepModelConfig as MultiStepModelConfig
from pombu.config.slbo import NoiseConfig as NoiseConfig
from pombu.config.slbo import SLBOConfig as SLBOConfig
from pombu.config.steve import ActorCriticConfig as ActorCriticConfig
from pombu.config.steve import ExpansionModelConfig as ExpansionModelConfig
from pombu.config.steve import STEVEConfig as STEVEConfig
from pombu.config.trpo import TRPOPolicyConfig as TRPOPolicyConfig
from pombu.config.trpo import TrustRegionConfig as TrustRegionConfig
