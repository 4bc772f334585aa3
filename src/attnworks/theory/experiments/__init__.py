"""The six experiments of the theory: rows, and their pictures."""
