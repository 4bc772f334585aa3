"""Wider heads, and more of them: where a model can grow, by which columns, and what that is worth."""
