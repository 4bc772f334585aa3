"""Tests mirror src/attnworks; `conformance` holds what every plug-in must keep, `laws` what mathematics demands."""
