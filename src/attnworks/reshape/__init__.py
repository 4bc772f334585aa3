"""(model, text, objective) -> (new model, Receipt): project heads onto structured forms, grow, cut or swap them.

>>> import attnworks
>>> new, receipt = attnworks.reshape.project(model, texts, heads="0.*", heal=100)  # doctest: +SKIP
>>> new, receipt = attnworks.reshape.grow(model, texts, add=8)  # doctest: +SKIP
>>> new, receipt = attnworks.reshape.prune(model, texts, keep=0.5)  # doctest: +SKIP
>>> new, receipt = attnworks.reshape.swap(model, texts, to="window:window=64", max_error=0.02)  # doctest: +SKIP
"""

from attnworks.reshape.contract import RESHAPES, Reshape
from attnworks.reshape.growth.in_training import grow_in_training
from attnworks.reshape.growth.places import NoBottleneckError
from attnworks.reshape.python import advise, grow, project, prune, swap

__all__ = ["RESHAPES", "NoBottleneckError", "Reshape", "advise", "grow", "grow_in_training", "project", "prune", "swap"]
