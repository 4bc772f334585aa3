"""S0: Xie 2021, "Attention", on why attention alone loses rank."""

from attnworks.claims.xie import lemma, paths, projection, residuals, theorem

__all__ = ["lemma", "paths", "projection", "residuals", "theorem"]
