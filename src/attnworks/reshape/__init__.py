"""Change attention with a receipt: grow, prune, swap and project heads. The public functions are in `api/`."""

from attnworks.reshape.contract import RESHAPES, Reshape, ReshapeContext, ReshapeResult
from attnworks.reshape.growth.grow import Grow
from attnworks.reshape.growth.in_training import grow_in_training
from attnworks.reshape.growth.places import NoBottleneckError
from attnworks.reshape.projection.project import Project
from attnworks.reshape.pruning.prune import Prune
from attnworks.reshape.receipt import Receipt
from attnworks.reshape.swapping.swap import Swap

__all__ = [
    "RESHAPES",
    "Grow",
    "NoBottleneckError",
    "Project",
    "Prune",
    "Receipt",
    "Reshape",
    "ReshapeContext",
    "ReshapeResult",
    "Swap",
    "grow_in_training",
]
