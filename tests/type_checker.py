"""The checker that the tests' import hook applies to every function of pombu."""

from beartype import BeartypeConf, beartype

# As for mypy, an int may stand where a float is asked for.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
