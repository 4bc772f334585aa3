"""Running models on text with hooks, which receive one LayerTrace at a time."""
