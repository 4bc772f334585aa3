"""Tensors to tensors: no modules, no state."""
