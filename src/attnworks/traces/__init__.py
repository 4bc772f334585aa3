"""Model and text to one LayerTrace at a time; nothing is kept."""
