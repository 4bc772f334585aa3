"""The live page: a small server on this machine alone, one model, and answers to what the page asks."""
