"""The five documents, and our own results beside them."""

from __future__ import annotations

from typing import NamedTuple


class Document(NamedTuple):
    """Where claims come from: the letters that their ids begin with, who wrote it, and how it is called."""

    key: str
    author: str
    title: str


DOCUMENTS = {
    document.key: document
    for document in (
        Document("S0", "Xie 2021", "Attention (rank bound)"),
        Document("S1", "the rank post, 2024", "on Dong, Cordonnier and Loukas"),
        Document("S2", "CS224N", "Attention exploration"),
        Document("S3", "Burgund", "Attention growing networks"),
        Document("S4", "Conti 2024", "The math behind transformers"),
        Document("D", "attnworks", "Derived results"),
    )
}
"""By the beginning of their ids. D is no document: statements that were found while the others were checked."""

STATEMENTS = 271
"""How many statements the five documents make."""
