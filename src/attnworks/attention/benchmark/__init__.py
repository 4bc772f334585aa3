"""Mechanisms against dense attention on this machine: times that take turns, and peak memory."""
