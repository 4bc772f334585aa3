"""Attention maps as a structured P plus small errors E: members of families, exact searches, fits.

>>> import torch
>>> from attnworks.exam.structure.fits import fit
>>> from attnworks.exam.structure.search import assignment, shift_map
>>> H = 0.9 * assignment(shift_map(16, torch.tensor(1)), 16) + 0.1 / 16
>>> fitted = fit(H, families=("identity", "offset", "band", "permutation"), eps=0.02)
>>> str(fitted.names)
'offset'

H is the map of a head, [*a i j]; P a member of a family; tau [*a i] the key that each query attends to, -1 for none.
Source: Conti 2024, section 3.1.1: P + E with P of Sigma_1, Sigma_2 or Sigma_3 and E sparse, of at most eps.
"""
