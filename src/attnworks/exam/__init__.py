"""One examination: plan the measures, run the model once, fold, say what was found."""
