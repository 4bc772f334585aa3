"""How annotations are checked while tests run: beartype, with an int wherever a float is asked for."""

from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
