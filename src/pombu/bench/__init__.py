"""How fast the engine is on this machine, beside its limit and plain PyTorch.

Everything is measured in one run and every ratio is between times of that run: a
machine's speed changes from hour to hour, a ratio of neighbours does not.
"""
