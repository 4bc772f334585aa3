"""The documented studies: train models, resume, tables and pictures."""
