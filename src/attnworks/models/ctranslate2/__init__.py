"""Translation models of attnworks in CTranslate2: as a folder, and as an engine that gives the same translations."""

from attnworks.models.ctranslate2.engine import CTranslate2Engine
from attnworks.models.ctranslate2.folder import save_ctranslate2
from attnworks.models.ctranslate2.spec import import_ctranslate2, inexpressible_part

__all__ = ["CTranslate2Engine", "import_ctranslate2", "inexpressible_part", "save_ctranslate2"]
