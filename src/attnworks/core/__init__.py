"""Files that are there whole or not at all, and are read with suspicion."""
