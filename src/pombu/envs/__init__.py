"""The real world: tasks, their contracts, and episodes collected in them."""

from pombu.envs.action_box import ActionBox as ActionBox
from pombu.envs.catalogue import CATALOGUE as CATALOGUE
from pombu.envs.checker import Finding as Finding
from pombu.envs.checker import Report as Report
from pombu.envs.checker import check as check
from pombu.envs.collection import CollectionError as CollectionError
from pombu.envs.collection import Episode as Episode
from pombu.envs.collection import collect as collect
from pombu.envs.collection import collect_rounds as collect_rounds
from pombu.envs.config import EnvConfig as EnvConfig
from pombu.envs.contract import Contract as Contract
from pombu.envs.contract import without_termination as without_termination
from pombu.envs.headless import choose_renderer
from pombu.envs.history import stack_episode as stack_episode
from pombu.envs.lookup import in_one_line as in_one_line
from pombu.envs.lookup import resolve as resolve
from pombu.envs.lookup import short_name as short_name
from pombu.envs.noise import NoiseKind as NoiseKind
from pombu.envs.registry import register as register
from pombu.envs.task import Task as Task
from pombu.envs.task import config_of as config_of
from pombu.envs.task import load as load
from pombu.envs.task import make as make

choose_renderer()
register()
