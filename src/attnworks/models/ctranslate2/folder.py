"""The folder of a model for CTranslate2: its own files, the vocabularies, and a manifest with a hash of each file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from attnworks.core.folders import new_folder, seal
from attnworks.models.ctranslate2.spec import make_spec
from attnworks.models.folder import MANIFEST_FILE, weights_fingerprint
from attnworks.models.transformer import Transformer
from attnworks.text.vocabulary import Vocabulary

MANIFEST_FORMAT = 1
TOKENIZER_FILES = "source.json", "target.json"


def save_ctranslate2(model: Transformer, vocabularies: tuple[Vocabulary, Vocabulary], folder: Path) -> None:
    """Write a model that CTranslate2 can express; whole or not at all.

    source.json and target.json are the vocabularies as the package tokenizers opens them. The manifest has the SHA-256
    of every file, and that of the weights of the model, by which a folder is known to be of a model.
    """
    spec = make_spec(model, vocabularies)
    with new_folder(folder) as scratch:
        spec.save(str(scratch))
        for vocabulary, name in zip(vocabularies, TOKENIZER_FILES, strict=True):
            vocabulary.save(scratch / name)
        files = {path.name: _file_sha256(path) for path in sorted(scratch.iterdir())}
        manifest = {"format": MANIFEST_FORMAT, "weights_sha256": weights_fingerprint(model), "files": files}
        (scratch / MANIFEST_FILE).write_bytes(seal(manifest))


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
