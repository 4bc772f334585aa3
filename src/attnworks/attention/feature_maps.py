"""Feature maps phi, with which linear attention weighs a key by phi(q)^T phi(k)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.contract import Geometry
from attnworks.core.errors import UsageError


class FeatureMap(nn.Module):
    """phi for queries and for keys [b h n k] -> [b h n f].

    A query's features may be multiplied by any positive number, which cancels in the ratio. A key's may not: one number
    for all keys would depend on later keys.
    Holds when: phi(a)^T phi(b) >= 0 for all a and b, so that weights are no less than zero. Positive definite is not
    enough (S4.97).
    """

    kernel = "identity"
    """The name of this map in the chunked kernel, if the kernel applies it."""
    eps = 0.0
    """The least absolute value of denominators; 0 for features that are never negative."""

    def default_scale(self, d_k: int) -> float:
        del d_k
        return 1.0

    def width(self, geometry: Geometry) -> int:
        return geometry.d_k

    def scaled(
        self, Q: Float[Tensor, "b h i k"], K: Float[Tensor, "b h j k"], scale: float
    ) -> tuple[Float[Tensor, "b h i k"], Float[Tensor, "b h j k"]]:
        """The inputs of the map if the scores of Q and K are to be multiplied by `scale`."""
        return Q if scale == 1 else scale * Q, K

    def queries(self, X: Float[Tensor, "b h i k"]) -> Float[Tensor, "b h i f"]:
        return self.keys(X)

    def keys(self, X: Float[Tensor, "b h j k"]) -> Float[Tensor, "b h j f"]:
        raise NotImplementedError

    def flops(self, positions: int, geometry: Geometry) -> int:
        """FLOPs of the matrix products that map these positions of one head."""
        del positions, geometry
        return 0


class Elu(FeatureMap):
    """phi(x) = elu(x) + 1 = exp(min(x, 0)) + max(x, 0), entry by entry.

    Source: S4.97, S4.104; Katharopoulos et al. 2020.
    """

    kernel = "elu"

    def keys(self, X: Tensor) -> Tensor:
        return X.clamp(max=0).exp_() + X.relu()


class Relu(FeatureMap):
    """phi(x) = max(x, 0), entry by entry. A query without a positive entry in common with any key sees nothing."""

    kernel = "relu"

    def keys(self, X: Tensor) -> Tensor:
        return X.relu()


class Exp(FeatureMap):
    """phi(x) = exp(x), entry by entry.

    Holds when: no entry of a key is above 88 in float32 (709 in float64), where exp is infinite, and not all of a key's
    are below -87 (-708), where the key weighs nothing. Entries of queries may be of any size.
    """

    kernel = "exp"

    def queries(self, X: Tensor) -> Tensor:
        return (X - X.detach().amax(-1, keepdim=True)).exp()

    def keys(self, X: Tensor) -> Tensor:
        return X.exp()


class Taylor(FeatureMap):
    """phi(x) = (1, x / ||x||), so that phi(q)^T phi(k) = 1 + cos(q, k), where x / ||x|| is 0 for x = 0.

    Source: Conti 2024, section 2.1.2 (S4.101), with the sums of S4.102 and S4.103.
    Departs: the document calls it an expansion of exp(q.k). It is one of exp(cos(q, k)), and smaller by up to 0.72.
    Only the sign of a scale matters. Denominators can vanish, where all keys point away from the query.
    """

    eps = 1e-6

    def width(self, geometry: Geometry) -> int:
        return geometry.d_k + 1

    def scaled(self, Q: Tensor, K: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        return (Q if scale > 0 else -Q if scale < 0 else torch.zeros_like(Q)), K

    def keys(self, X: Tensor) -> Tensor:
        largest = X.detach().abs().amax(-1, keepdim=True)
        some = largest > 0
        X = X / torch.where(some, largest, 1.0)  # so that no square overflows or vanishes
        squares = torch.where(some, X.square().sum(-1, keepdim=True), torch.inf)
        return torch.cat([torch.ones_like(X[..., :1]), X * squares.rsqrt()], -1)


class RandomFeatures(FeatureMap):
    """phi(x)_m = exp(w_m^T x - ||x||^2 / 2) / sqrt(M) for random w_1 ... w_M, so that E phi(q)^T phi(k) = exp(q^T k).

    The w are normal, and orthogonal in groups of d_k. They are drawn from `seed` once and saved with the model.
    A scale s multiplies q and k by sqrt|s| each and gives its sign to q.
    Source: Choromanski et al. 2021 (positive orthogonal random features).
    Holds when: |s| ||k||^2 / 2 stays below about 80 in float32; longer keys weigh nothing. Keys never overflow: none of
    their exponents is above ||w||^2 / 2, about d_k / 2. The error falls as 1 / sqrt(M), but grows with exp of scores.
    """

    W: Float[Tensor, "m k"]

    def __init__(self, d_k: int, features: int, seed: int) -> None:
        super().__init__()
        W = orthogonal_normals(features, d_k, seed).to(torch.get_default_dtype())
        self.register_buffer("W", W.to(torch.get_default_device()))

    def default_scale(self, d_k: int) -> float:
        return d_k**-0.5

    def width(self, geometry: Geometry) -> int:
        return len(self.W)

    def scaled(self, Q: Tensor, K: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        root = math.sqrt(abs(scale))
        return math.copysign(root, scale) * Q, root * K

    def queries(self, X: Tensor) -> Tensor:
        exponents = X @ self.W.to(X.dtype).mT
        return (exponents - exponents.detach().amax(-1, keepdim=True)).exp()

    def keys(self, X: Tensor) -> Tensor:
        exponents = X @ self.W.to(X.dtype).mT - X.square().sum(-1, keepdim=True) / 2
        return exponents.exp() * len(self.W) ** -0.5

    def flops(self, positions: int, geometry: Geometry) -> int:
        return 2 * positions * geometry.d_k * len(self.W)


class OwnFeatures(FeatureMap):
    """A user's own map [b h n k] -> [b h n f]. A module is trained and saved with the mechanism."""

    eps = 1e-6

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def width(self, geometry: Geometry) -> int:
        like = next(self.parameters(), torch.zeros(()))
        return self.keys(like.new_zeros(1, geometry.heads, 1, geometry.d_k)).shape[-1]

    def keys(self, X: Tensor) -> Tensor:
        features = self.function(X)
        if not isinstance(features, Tensor) or features.shape[:-1] != X.shape[:-1]:
            shape = str(list(features.shape)) if isinstance(features, Tensor) else type(features).__name__
            expected = f"features [{', '.join(map(str, X.shape[:-1]))}, any] for an input {list(X.shape)}"
            raise UsageError("linear attention with a map of your own", expected, shape, "map the last axis alone")
        return features.to(X.dtype)


def orthogonal_normals(m: int, k: int, seed: int) -> Float[Tensor, "m k"]:
    """m vectors that are each standard normal, and orthogonal to each other in groups of k, in float64."""
    source = torch.Generator("cpu").manual_seed(seed)
    groups = torch.randn(2, -(-m // k), k, k, generator=source, dtype=torch.float64, device="cpu")
    Q, R = torch.linalg.qr(groups[0])
    directions = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = groups[1].norm(dim=-1, keepdim=True)
    return (directions.mT * lengths).flatten(0, 1)[:m]
