"""Model folders: exact round trips, refusals in one line, and nothing half-written or half-read."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from attnworks.core import folders
from attnworks.core.errors import AttnworksError, FolderError, UnsafeFileError
from attnworks.models import Model, ModelConfig, Transformer, build, folder, load_model, save_model
from attnworks.models.folder import CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE
from tests.model_helpers import attention_config, filled, pure_config, recurrent_config, the, transformer_config

NAMES = {CONFIG_FILE, MANIFEST_FILE, WEIGHTS_FILE}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CONFIGS: dict[str, ModelConfig] = {
    "post": transformer_config(),
    "pre": transformer_config(norm="pre", norm_kind="documented", positions="learned", max_length=13, output_bias=True),
    "tied": transformer_config(tie="target"),
    "all tied": transformer_config(tie="all", target_vocabulary=None),
    "encoder": transformer_config(decoder_layers=0, attention=attention_config(bias=False)),
    "decoder": transformer_config(encoder_layers=0, tie="target"),
    "slots": transformer_config(
        slots={
            "cross.1": attention_config(heads=2, d_k=3, d_v=7, scale=0.25),
            "enc.0": attention_config(mechanism=("luong-multiplicative", "dense", "bahdanau-additive:d_a=3")),
        }
    ),
    "lstm": recurrent_config(layers=2),
    "gru": recurrent_config(cell="gru", mechanism="bahdanau-additive"),
    "pure": pure_config(skip=True, mlp=True, norm=True),
}


def model_of(name: str = "post", dtype: torch.dtype = torch.float32, seed: int = 0) -> Model:
    return filled(build(CONFIGS[name]), seed).to(dtype)


def bits(model: Model) -> dict[str, bytes]:
    return {
        name: tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for name, tensor in model.named_parameters(remove_duplicate=False)
    }


def entries(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def snapshot(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def refused(place: Path, *texts: str, kind: type[AttnworksError] = FolderError) -> str:
    """The one-line error that loading gives."""
    with pytest.raises(AttnworksError) as caught:
        load_model(place)
    message = str(caught.value)
    assert type(caught.value) is kind and "\n" not in message and len(message) < 1000, message
    for text in texts:
        assert text in message
    return message


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the disk is tested once, below; elsewhere it only takes time."""
    monkeypatch.setattr(folders.os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(model_of(), tmp_path_factory.mktemp("pristine") / "model")


@pytest.fixture
def saved(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def forge(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and make its own hash right again, as an attacker would."""
    manifest = json.loads((place / MANIFEST_FILE).read_bytes())
    del manifest["sha256"]
    change(manifest)
    manifest["sha256"] = hashlib.sha256(canonical(manifest)).hexdigest()
    (place / MANIFEST_FILE).write_bytes(canonical(manifest))


def canonical(data: object) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def forge_config(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((place / CONFIG_FILE).read_bytes())
    change(config)
    (place / CONFIG_FILE).write_bytes(canonical(config))
    digest = hashlib.sha256(canonical(config)).hexdigest()
    forge(place, lambda manifest: manifest.update(config_sha256=digest))


# Round trips ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_round_trip_is_bit_exact(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = model_of(name, dtype)
    place = save_model(model, tmp_path / "model")
    again = load_model(place)
    assert place == tmp_path / "model" and entries(place) == NAMES and entries(tmp_path) == {"model"}
    assert type(again) is type(model) and again.config == model.config
    assert bits(again) == bits(model)
    for (key, one), two in zip(model.named_parameters(), again.parameters(), strict=True):
        assert two.dtype == dtype and two.requires_grad and two.stride() == one.stride(), key
    assert {key: p.shape for key, p in again.state_dict().items()} == {
        key: p.shape for key, p in model.state_dict().items()
    }


def test_saving_again_gives_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    assert snapshot(save_model(load_model(saved), tmp_path / "again")) == snapshot(saved)


@pytest.mark.parametrize("name", ["tied", "all tied"])
def test_tied_weights_are_stored_once_and_stay_tied(name: str, tmp_path: Path) -> None:
    place = save_model(model_of(name), tmp_path / "model")
    with safe_open(place / WEIGHTS_FILE, "pt") as file:
        stored = set(file.keys())
    again = load_model(place)
    assert isinstance(again, Transformer)
    assert "output.weight" not in stored
    assert ("target_embedding.weight" in stored) == (name == "tied")
    assert the(again.target_embedding).weight is again.output.weight
    assert (the(again.source_embedding).weight is again.output.weight) == (name == "all tied")


def test_loaded_models_compute_and_learn_the_same(tmp_path: Path) -> None:
    model = model_of("slots", torch.float64)
    again = load_model(save_model(model, tmp_path / "model"))
    source, target = torch.arange(14).reshape(2, 7), torch.arange(10).reshape(2, 5)
    for one in (model, again):
        one(source, target).square().sum().backward()
    for first, second in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(the(first.grad), the(second.grad))


def test_nan_and_infinite_weights_come_back(tmp_path: Path) -> None:
    """A folder stores what was; judging it is not its business."""
    model = model_of()
    assert isinstance(model, Transformer)
    with torch.no_grad():
        model.output.weight[0, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
    assert bits(load_model(save_model(model, tmp_path / "model"))) == bits(model)


def test_loading_leaves_the_random_state_alone(saved: Path) -> None:
    state = torch.get_rng_state()
    load_model(saved)
    assert torch.equal(torch.get_rng_state(), state)


def test_files_can_be_read_by_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        place = save_model(model_of(), tmp_path / "model")
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o644}


def test_text_paths_and_missing_parents(tmp_path: Path) -> None:
    place = save_model(model_of(), str(tmp_path / "a" / "b c" / "modèle"))
    assert bits(load_model(str(place))) == bits(model_of())


# Where to save -------------------------------------------------------------------------------------------------------


def refused_to_save(place: Path, *texts: str, overwrite: bool = False) -> None:
    with pytest.raises(FolderError) as caught:
        save_model(model_of(), place, overwrite=overwrite)
    assert "\n" not in str(caught.value)
    for text in texts:
        assert text in str(caught.value)


def test_nothing_is_overwritten_unasked(saved: Path) -> None:
    before = snapshot(saved)
    refused_to_save(saved, "expected a path that does not exist yet", "choose another place or pass overwrite=True")
    assert snapshot(saved) == before and entries(saved.parent) == {"model"}


@pytest.mark.parametrize("exchange", [True, False])
def test_overwrite_replaces_the_whole_folder(saved: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    (saved / "notes.txt").write_text("of the old model")
    other = model_of("gru", seed=1)
    save_model(other, saved, overwrite=True)
    assert bits(load_model(saved)) == bits(other)
    assert entries(saved) == NAMES and entries(saved.parent) == {"model"}


def test_overwrite_of_nothing_just_saves(tmp_path: Path) -> None:
    assert bits(load_model(save_model(model_of(), tmp_path / "new", overwrite=True))) == bits(model_of())


@pytest.mark.parametrize(
    "held", [{}, {"thesis.tex": "years"}, {MANIFEST_FILE: "{}"}, {MANIFEST_FILE: "{}", CONFIG_FILE: "{}"}], ids=str
)
def test_a_folder_that_is_no_model_is_never_replaced(held: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "precious"
    place.mkdir()
    for name, text in held.items():
        (place / name).write_text(text)
    before = snapshot(place)
    refused_to_save(place, "a model folder", "choose another place", overwrite=True)
    assert snapshot(place) == before and entries(tmp_path) == {"precious"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    place = tmp_path / "file"
    place.write_text("text")
    refused_to_save(place, overwrite=overwrite)
    assert place.read_text() == "text" and entries(tmp_path) == {"file"}


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    refused_to_save(tmp_path / "file" / "model", "free space or choose another disk")
    refused(tmp_path / "file" / "model", "nothing there")


def test_a_link_to_a_folder_is_followed(saved: Path, tmp_path: Path) -> None:
    link = tmp_path / "elsewhere" / "latest"
    link.parent.mkdir()
    link.symlink_to(saved)
    assert bits(load_model(link)) == bits(model_of())
    other = model_of(seed=1)
    assert save_model(other, link, overwrite=True) == link
    assert link.is_symlink() and bits(load_model(saved)) == bits(other)
    assert entries(tmp_path) == {"model", "elsewhere"} and entries(link.parent) == {"latest"}


def test_a_link_that_leads_nowhere_gets_its_folder(tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "gone")
    save_model(model_of(), link)
    assert link.is_symlink() and bits(load_model(tmp_path / "gone")) == bits(model_of())


def test_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "circle"
    link.symlink_to(link)
    refused_to_save(link)
    refused(link, "nothing there")
    assert entries(tmp_path) == {"circle"}


def test_a_parent_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object, **options: object) -> str:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(folders.tempfile, "mkdtemp", denied)
    refused_to_save(tmp_path / "model", "Permission denied", "choose another disk")
    assert entries(tmp_path) == set()


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_read_only_parent(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        refused_to_save(tmp_path / "model", "Permission denied")
    finally:
        tmp_path.chmod(0o755)


def test_everything_is_on_disk_before_it_is_renamed_and_the_name_after(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    put, exchange = folders._put_in_place, folders._exchange
    monkeypatch.setattr(
        folders, "sync", lambda path: done.append(f"sync {path.suffix if path.is_dir() else path.name}")
    )
    monkeypatch.setattr(folders, "_exchange", lambda one, other: (done.append("swap"), exchange(one, other))[1])
    monkeypatch.setattr(folders, "_put_in_place", lambda one, other: (done.append("put"), put(one, other))[1])
    monkeypatch.setattr(folders.shutil, "rmtree", lambda path, **_: done.append(f"remove {path.suffix}"))
    save_model(model_of(seed=1), saved, overwrite=True)
    assert set(done[:3]) == {f"sync {name}" for name in NAMES}
    assert done[3:] == ["sync .partial", "put", "swap", "sync ", "remove .partial"]


def test_sync_waits_for_the_disk(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(folders.os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    folders.sync(saved / CONFIG_FILE)
    folders.sync(saved)
    assert synced == [(saved / CONFIG_FILE).stat().st_ino, saved.stat().st_ino]


# Failures while saving -----------------------------------------------------------------------------------------------


def breaking(monkeypatch: pytest.MonkeyPatch, what: str, error: BaseException) -> None:
    """Let one step of saving fail after it has done half its work."""

    def weights(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    def anything(*args: object) -> None:
        raise error

    if what == "save_file":
        monkeypatch.setattr(folders, "save_file", weights)
    elif what == "write_bytes":
        monkeypatch.setattr(Path, "write_bytes", anything)
    elif what == "fsync":
        monkeypatch.setattr(folders.os, "fsync", anything)
    else:
        monkeypatch.setattr(folders, "_put_in_place", anything)


STEPS = ("save_file", "write_bytes", "fsync", "rename")


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_is_one_line_and_leaves_nothing_behind(
    step: str, existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "model"
    if existing:
        save_model(model_of(), place)
    before = snapshot(tmp_path)
    breaking(monkeypatch, step, OSError(28, "No space left on device"))
    with pytest.raises(FolderError) as caught:
        save_model(model_of(seed=1), place, overwrite=True)
    assert str(caught.value) == (
        f"save to {place}: expected free space on the disk, got No space left on device; "
        "free space or choose another disk"
    )
    assert snapshot(tmp_path) == before and entries(tmp_path) == ({"model"} if existing else set())


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_passes_through_and_leaves_nothing_behind(
    step: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(saved.parent)
    breaking(monkeypatch, step, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        save_model(model_of(seed=1), saved, overwrite=True)
    assert snapshot(saved.parent) == before and entries(saved.parent) == {"model"}


def test_without_exchange_a_failed_second_rename_brings_the_old_folder_back(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename
    monkeypatch.setattr(folders, "_exchange", lambda one, other: False)

    def stubborn(self: Path, target: Path) -> Path:
        if self.suffix == ".partial" and target == saved:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stubborn)
    before = snapshot(saved)
    refused_to_save(saved, "Input/output error", overwrite=True)
    assert snapshot(saved) == before and entries(saved.parent) == {"model"}


def test_exchange_swaps_or_says_that_it_cannot(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.mkdir()
        (path / path.name).touch()
    assert not folders._exchange(one, tmp_path / "missing")
    if folders._exchange(one, other):
        assert entries(one) == {"other"} and entries(other) == {"one"}


def test_a_copy_left_by_an_interrupted_save_is_pointed_out(saved: Path) -> None:
    stale = Path(shutil.copytree(saved, saved.parent / ".model.x3.old"))
    os.utime(stale, (1, 1))
    old = saved.rename(saved.parent / ".model.x1y2.old")
    refused(saved, "nothing there", f"an interrupted save left {old}: rename it to {saved}")


# What is not a model folder ------------------------------------------------------------------------------------------


class Bomb:
    """Unpickling it is seen."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return (os.mkdir, (os.path.join(os.environ["BOMB"], "exploded"),))


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    monkeypatch.setenv("BOMB", str(tmp_path))
    yield pickle.dumps(Bomb())
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "weights.pth", "epoch.ckpt", "m.pkl", "m.pickle"])
def test_pickles_are_refused_unopened(name: str, bomb: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lone, place = tmp_path / name, tmp_path / "model"
    place.mkdir()
    for path in (lone, place / name):
        path.write_bytes(bomb)
    (place / CONFIG_FILE).write_text("{}")
    opened: list[str] = []
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: (opened.append(self.name), real(self, *a, **k))[1])
    for path in (lone, place):
        refused(path, name, "a pickle, which can run code", "convert it", kind=UnsafeFileError)
    assert opened == []


def test_a_pickle_beside_good_weights_is_not_touched(saved: Path, bomb: bytes) -> None:
    (saved / "pytorch_model.bin").write_bytes(bomb)
    assert bits(load_model(saved)) == bits(model_of())


def test_a_pickle_under_the_name_of_weights_is_refused(saved: Path, bomb: bytes) -> None:
    (saved / WEIGHTS_FILE).write_bytes(bomb)
    refused(saved, WEIGHTS_FILE, "a whole safetensors file")


def test_nothing_there_and_other_files(tmp_path: Path) -> None:
    refused(tmp_path / "none", "expected a model folder, got nothing there", "check the path")
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(tmp_path / "model.safetensors", "got a file")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_missing_file_is_named(name: str, saved: Path) -> None:
    (saved / name).unlink()
    refused(saved, f"got no {name}", "copy the whole folder again")
    (saved / name).mkdir()
    refused(saved, f"got no {name}")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_empty_file_is_refused(name: str, saved: Path) -> None:
    (saved / name).write_bytes(b"")
    refused(saved, name)


@pytest.mark.parametrize("name", [CONFIG_FILE, MANIFEST_FILE])
def test_a_file_that_may_not_be_read(name: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.read_bytes

    def denied(self: Path) -> bytes:
        if self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", denied)
    refused(saved, "Permission denied", "check that you may read it")


# Changed folders -----------------------------------------------------------------------------------------------------


def rewrite(place: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(place / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, place / WEIGHTS_FILE)


def test_a_missing_tensor(saved: Path) -> None:
    rewrite(saved, lambda tensors: tensors.pop("output.weight"))
    refused(saved, WEIGHTS_FILE, "missing tensor 'output.weight'")
    forge(saved, lambda manifest: manifest["tensors"].pop("output.weight"))
    refused(saved, MANIFEST_FILE, "missing tensor 'output.weight'")


def test_an_extra_tensor(saved: Path) -> None:
    extra = torch.zeros(3)
    rewrite(saved, lambda tensors: tensors.update(extra=extra))
    refused(saved, WEIGHTS_FILE, "extra tensor 'extra'")
    forge(saved, lambda manifest: manifest["tensors"].update(extra=folders.describe_tensor(extra)))
    refused(saved, MANIFEST_FILE, "extra tensor 'extra'")


def test_a_wrong_shape(saved: Path) -> None:
    turned = load_file(saved / WEIGHTS_FILE)["output.weight"].T.contiguous()
    rewrite(saved, lambda tensors: tensors.update({"output.weight": turned}))
    refused(saved, WEIGHTS_FILE, "shape of output.weight [19, 14], got shape [14, 19]")
    forge(saved, lambda manifest: manifest["tensors"].update({"output.weight": folders.describe_tensor(turned)}))
    refused(saved, MANIFEST_FILE, "output.weight of shape [19, 14], got shape [14, 19]")


def test_a_wrong_dtype(saved: Path) -> None:
    rewrite(saved, lambda tensors: tensors.update({"output.weight": tensors["output.weight"].double()}))
    refused(saved, "dtype of output.weight float32, got dtype float64")
    whole = torch.ones(19, 14, dtype=torch.int32)
    rewrite(saved, lambda tensors: tensors.update({"output.weight": whole}))
    forge(saved, lambda manifest: manifest["tensors"].update({"output.weight": folders.describe_tensor(whole)}))
    refused(saved, MANIFEST_FILE)


def test_one_changed_number(saved: Path) -> None:
    rewrite(saved, lambda tensors: tensors["output.weight"].view(-1)[5].add_(1e-3))
    refused(saved, WEIGHTS_FILE, "sha256 of output.weight")


def test_swapped_tensors_of_one_shape(saved: Path) -> None:
    def swap(tensors: dict[str, torch.Tensor]) -> None:
        one, other = "encoder.0.attention.W_Q", "encoder.0.attention.W_K"
        tensors[one], tensors[other] = tensors[other], tensors[one]

    rewrite(saved, swap)
    refused(saved, "sha256 of encoder.0.attention.W_")


def test_a_changed_config(saved: Path) -> None:
    text = (saved / CONFIG_FILE).read_text()
    (saved / CONFIG_FILE).write_text(text.replace('"dropout": 0.0', '"dropout": 0.5'))
    refused(saved, CONFIG_FILE, "one that was changed since")


def test_another_format_asks_for_another_version(saved: Path) -> None:
    forge(saved, lambda manifest: manifest.update(format=2))
    refused(saved, "expected folder format 1, got 2; save the model again")


# Forged folders, with every hash right -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("config_sha256"),
        lambda m: m.pop("tensors"),
        lambda m: m.update(config_sha256=3),
        lambda m: m.update(tensors=[]),
        lambda m: m.update(tensors=None),
        lambda m: m["tensors"].update({"output.weight": 3}),
        lambda m: m["tensors"]["output.weight"].pop("shape"),
        lambda m: m["tensors"]["output.weight"].pop("sha256"),
        lambda m: m["tensors"]["output.weight"].update(note="extra"),
        lambda m: m["tensors"]["output.weight"].update(dtype="int64"),
        lambda m: m["tensors"]["output.weight"].update(dtype=["float32"]),
        lambda m: m["tensors"]["output.weight"].update(shape=None),
        lambda m: m["tensors"]["output.weight"].update(shape=[10**30, 10**30]),
    ],
)
def test_forged_manifests(change: Callable[[dict[str, Any]], object], saved: Path) -> None:
    forge(saved, change)
    refused(saved, MANIFEST_FILE)


def test_unknown_key_in_a_forged_config(saved: Path) -> None:
    forge_config(saved, lambda config: config.update(droppout=0.1))
    with pytest.raises(AttnworksError, match=r"key of config 'droppout'.*did you mean 'dropout'"):
        load_model(saved)


def test_wrong_kind_in_a_forged_config(saved: Path) -> None:
    forge_config(saved, lambda config: config.update(kind="recurrent"))
    with pytest.raises(AttnworksError, match="key of config"):
        load_model(saved)


@pytest.mark.parametrize(
    "changes",
    [
        {"vocabulary": 2**26, "d_e": 2**20},
        {"d_ff": 2**20},
        {"attention": {"heads": 2**20, "d_k": 2**20, "d_v": 2**20}},
        {"max_length": 2**26, "positions": "learned"},
        {"vocabulary": 2**27},
        {"encoder_layers": 300},
    ],
    ids=str,
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(
    changes: dict[str, Any], saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge_config(saved, lambda config: config.update(changes))
    monkeypatch.setattr(folder, "build", lambda *a, **k: pytest.fail("a model was built"))
    monkeypatch.setattr(folders, "safe_open", lambda *a, **k: pytest.fail("weights were opened"))
    with pytest.raises(AttnworksError):
        load_model(saved)


@pytest.mark.parametrize("d_a", ["x", "-3", "1e3", "99999999999999999999", "9999999999999", "[1]", "null"])
def test_options_that_no_mechanism_can_use(d_a: str, saved: Path) -> None:
    forge_config(saved, lambda config: config["attention"].update(mechanism=f"bahdanau-additive:d_a={d_a}"))
    with pytest.raises(AttnworksError) as caught:
        load_model(saved)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [CONFIG_FILE, MANIFEST_FILE])
def test_huge_json_is_not_even_read(name: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(saved / name, "r+b") as file:
        file.truncate(folders.MAX_JSON_BYTES + 1)
    real = Path.read_bytes

    def small_only(self: Path) -> bytes:
        assert self.name != name, "it was read"
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", small_only)
    refused(saved, f"at most {folders.MAX_JSON_BYTES:,} bytes, got {folders.MAX_JSON_BYTES + 1:,} bytes")


ODD_JSON = {
    "deep": b"[" * 100_000,
    "deep but legal": b'{"format": 1, "sha256": "", "x": ' + b"[" * 900 + b"]" * 900 + b"}",
    "surrogate": b'{"format": 1, "sha256": "", "x": "\\ud800"}',
    "not text": b"\xff\xfe\x00",
    "long number": b'{"format": ' + b"9" * 5000 + b"}",
    "list": b"[1]",
    "null": b"null",
    "number": b"1",
    "twice": b'{"format": 1, "format": 1, "sha256": ""}',
    "nothing but a hash": b'{"sha256": "", "format": 1}',
}


@pytest.mark.parametrize("text", ODD_JSON.values(), ids=ODD_JSON.keys())
@pytest.mark.parametrize("name", [CONFIG_FILE, MANIFEST_FILE])
def test_odd_json(name: str, text: bytes, saved: Path) -> None:
    (saved / name).write_bytes(text)
    refused(saved, name)
    if name == CONFIG_FILE:
        forge(saved, lambda manifest: manifest.update(config_sha256=hashlib.sha256(text).hexdigest()))
        with pytest.raises(AttnworksError) as caught:
            load_model(saved)
        assert "\n" not in str(caught.value)


def test_a_reshaped_config_needs_its_own_weights(saved: Path) -> None:
    config = replace(transformer_config(), d_ff=13)
    digest = hashlib.sha256(canonical(folder.config_to_json(config))).hexdigest()
    (saved / CONFIG_FILE).write_bytes(canonical(folder.config_to_json(config)))
    forge(saved, lambda manifest: manifest.update(config_sha256=digest))
    refused(saved, MANIFEST_FILE, "mlp.W_1 of shape [14, 13], got shape [14, 11]")
