"""Training: one readable loop, a run folder that survives anything, one process or many."""
