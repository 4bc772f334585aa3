"""Attention maps as a structured P plus small errors E: members of families, projections, exact searches, fits.

>>> import torch
>>> from attnworks.exam import structure
>>> H = 0.9 * structure.column_blocks(16, [structure.Block(3, 7, 5)]) + 0.1 / 16
>>> fitted = structure.fit(H, families=("identity", "band", "columns", "permutation"), eps=0.02)
>>> str(fitted.names), structure.blocks_of(fitted.form("columns"))
('columns', (Block(start=3, width=7, column=5),))

H is the map of a head, [*a i j]; P a member of a family; tau [*a i] the key that each query attends, -1 for none.
Source: Conti 2024, section 3.1.1: P + E with P of Sigma_1, Sigma_2 or Sigma_3 and E sparse, of at most eps.
"""

from attnworks.exam.structure.families import (
    Block,
    assignment,
    band_mask,
    block_count,
    blocks_around,
    blocks_of,
    column_blocks,
    drop_band,
    identity,
    is_assignment,
    is_band,
    is_permutation,
    sample_band,
    shift_map,
)
from attnworks.exam.structure.fits import Fit, fit, offset_duels, winner
from attnworks.exam.structure.members import FAMILIES, Member, Terms
from attnworks.exam.structure.search import (
    best_blocks,
    best_column,
    best_map,
    best_offset,
    best_order,
    best_permutation,
    gain,
)
from attnworks.theory.structured_sets import (
    Projection,
    RowReport,
    largest,
    project,
    renormalised,
    row_report,
    small_errors,
)

__all__ = [
    "FAMILIES",
    "Block",
    "Fit",
    "Member",
    "Projection",
    "RowReport",
    "Terms",
    "assignment",
    "band_mask",
    "best_blocks",
    "best_column",
    "best_map",
    "best_offset",
    "best_order",
    "best_permutation",
    "block_count",
    "blocks_around",
    "blocks_of",
    "column_blocks",
    "drop_band",
    "fit",
    "gain",
    "identity",
    "is_assignment",
    "is_band",
    "is_permutation",
    "largest",
    "offset_duels",
    "project",
    "renormalised",
    "row_report",
    "sample_band",
    "shift_map",
    "small_errors",
    "winner",
]
