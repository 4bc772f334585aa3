"""Probes: texts made for a question, such as whether a head continues what was repeated."""

from attnworks.exam.probes.run import Probes, run_probes

__all__ = ["Probes", "run_probes"]
