"""Claims by document: s0 Xie 2021, s1 the rank post, s2 CS224N, s3 Burgund, s4 Conti 2024, d derived here.

Importing this package imports all of its modules, which registers their claims.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
