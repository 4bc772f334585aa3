"""Attention maps as a structured P plus small errors E: members of families, exact searches, fits.

>>> import torch
>>> from attnworks.exam import structure
>>> H = 0.9 * structure.assignment(structure.shift_map(16, torch.tensor(1)), 16) + 0.1 / 16
>>> fitted = structure.fit(H, families=("identity", "offset", "band", "permutation"), eps=0.02)
>>> str(fitted.names)
'offset'

H is the map of a head, [*a i j]; P a member of a family; tau [*a i] the key that each query attends, -1 for none.
Source: Conti 2024, section 3.1.1: P + E with P of Sigma_1, Sigma_2 or Sigma_3 and E sparse, of at most eps.
"""

from attnworks.exam.structure.fits import Fit, fit, offset_duels, small_errors, winner
from attnworks.exam.structure.members import FAMILIES, Member, Terms
from attnworks.exam.structure.search import (
    assignment,
    band_mask,
    best_blocks,
    best_column,
    best_map,
    best_offset,
    best_order,
    best_permutation,
    block_count,
    gain,
    shift_map,
)

__all__ = [
    "FAMILIES",
    "Fit",
    "Member",
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
    "fit",
    "gain",
    "offset_duels",
    "shift_map",
    "small_errors",
    "winner",
]
