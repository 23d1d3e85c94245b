"""The paper's figures and tables, its published numbers and its point experiments.

`pombu reproduce` runs what is here; nothing but the command line imports it.
"""

from typing import Literal

Profile = Literal["smoke", "fast", "paper"]
"""A scale of the experiments; it is here so that a command need not import them."""
