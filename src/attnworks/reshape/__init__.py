"""(model, text, objective) -> (new model, Receipt): project heads onto structured forms.

>>> import attnworks
>>> new, receipt = attnworks.reshape.project(model, tokenizer, texts, heads="0.*", heal=100)  # doctest: +SKIP
"""

from attnworks.reshape.contract import RESHAPES, Reshape
from attnworks.reshape.python import project

__all__ = ["RESHAPES", "Reshape", "project"]
