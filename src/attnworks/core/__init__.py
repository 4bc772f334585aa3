"""Errors, checks, folders on disk, processes and timing: nothing about attention."""
