"""The documented studies, each one command."""
