"""pombu: sample-efficient, uncertainty-aware model-based reinforcement learning."""

from pombu._version import __version__ as __version__
from pombu.envs import EnvConfig as EnvConfig
from pombu.envs import Task as Task
