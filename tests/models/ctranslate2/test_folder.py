"""The folder for CTranslate2: whole, hashed, and translated by the package alone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from attnworks.core.folders import read_sealed
from attnworks.models.ctranslate2 import save_ctranslate2
from attnworks.models.ctranslate2.spec import make_spec
from attnworks.models.decoding import greedy
from attnworks.models.folder import weights_fingerprint
from attnworks.text.vocabulary import BOS, EOS
from tests.models.ctranslate2.ctranslate2_helpers import model_of, sources

ctranslate2: Any = pytest.importorskip("ctranslate2")


def test_the_package_alone_translates(tmp_path: Path) -> None:
    """Tokens without <eos>, which it adds, and its defaults but for shortest and longest translations."""
    model, vocabularies = model_of("pre")
    save_ctranslate2(model, vocabularies, tmp_path / "fast")
    source, real = sources()
    source_tokens, target_tokens = (Tokenizer.from_file(str(tmp_path / "fast" / name)) for name in
                                    ("source.json", "target.json"))  # fmt: skip
    rows = [[source_tokens.id_to_token(token) for token in row[row > EOS].tolist()] for row in source]
    translator = ctranslate2.Translator(str(tmp_path / "fast"))
    found = translator.translate_batch(rows, beam_size=1, max_decoding_length=20, min_decoding_length=0)
    expected = greedy(model, source, real, bos=BOS, eos=EOS, max_new_tokens=20)
    written = [tuple(target_tokens.token_to_id(token) for token in one.hypotheses[0]) for one in found]
    assert written == [one.tokens for one in expected]


def test_every_file_is_hashed(tmp_path: Path) -> None:
    model, vocabularies = model_of("post")
    save_ctranslate2(model, vocabularies, tmp_path / "fast")
    manifest = read_sealed(tmp_path / "fast" / "manifest.json")
    assert manifest["weights_sha256"] == weights_fingerprint(model)
    files = {path.name: path.read_bytes() for path in (tmp_path / "fast").iterdir() if path.name != "manifest.json"}
    assert {"model.bin", "config.json", "source.json", "target.json"} < files.keys()
    assert manifest["files"] == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def test_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, vocabularies = model_of("post")
    spec = make_spec(model, vocabularies)

    def fail(_: object, folder: str) -> None:
        (Path(folder) / "model.bin").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(spec), "save", fail)
    with pytest.raises(OSError, match="free space"):
        save_ctranslate2(model, vocabularies, tmp_path / "fast")
    assert [*tmp_path.iterdir()] == []
