"""Training: the fitting loop, runs and their folders, objectives, evaluation; in one process or several."""
