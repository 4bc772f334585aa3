"""D: results that we derived from the documents."""

from attnworks.claims.derived import counting, growth, numerics, rank, retrieval, structure

__all__ = ["counting", "growth", "numerics", "rank", "retrieval", "structure"]
