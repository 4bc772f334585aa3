"""Objectives: what training minimises, and one loss per sentence for examinations and healing."""
