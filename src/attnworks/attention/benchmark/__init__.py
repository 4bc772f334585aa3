"""Mechanisms timed against dense attention on this machine, with their peak memory."""
