"""Fast kernels behind the mechanisms, as torch operators."""
