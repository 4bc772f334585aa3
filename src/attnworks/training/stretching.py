"""What an optimiser remembers of a model, for the model after it grew."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attnworks.models.additions import stretched
from attnworks.storage.tensors import parameters_of


def stretched_state(state: Mapping[str, Tensor], old: nn.Module, new: nn.Module) -> dict[str, Tensor]:
    """`optimiser_tensors` of the old model with zeros for every weight that is new; counters stay as they are.

    Adam's moments lie as the weights do, so that they are put in the place of the weights and grow as these did.
    """
    moments = {key.rpartition("/")[2] for key, value in state.items() if value.dim()}
    grown = {key: value for key, value in state.items() if key.rpartition("/")[2] not in moments}
    for moment in moments:
        holder = copy.deepcopy(old)
        with torch.no_grad():
            for name, parameter in parameters_of(holder).items():
                parameter.copy_(state.get(f"{name}/{moment}", torch.zeros_like(parameter)))
        stretched_names = parameters_of(stretched(holder, new)).items()
        grown |= {f"{name}/{moment}": value.detach() for name, value in stretched_names if f"{name}/{moment}" in state}
    return grown
