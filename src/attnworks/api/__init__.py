"""The documented public functions. `attnworks/__init__.py` imports each on first use."""
