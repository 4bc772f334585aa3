"""Files and folders that appear whole or not at all, and pointers to them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from attnworks.core import folders
from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import disk_errors, new_folder, write_file
from attnworks.core.sealed import BEST, LAST, best_of, point, pointed_at, seal


def test_write_file_replaces(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_who_may_read_a_file_is_told_by_the_umask_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "x"
    before = os.umask(0o077)
    try:
        write_file(path, b"one")
    finally:
        os.umask(before)
    write_file(path, b"two")
    assert path.read_bytes() == b"two" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_leads_to_what_is_replaced(tmp_path: Path) -> None:
    place, link = tmp_path / "place", tmp_path / "link"
    place.write_bytes(b"one")
    link.symlink_to(place)
    write_file(link, b"two")
    assert link.is_symlink() and place.read_bytes() == b"two"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    write_file(path, b"one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FolderError, match="No space left"):
        write_file(path, b"two")
    assert path.read_bytes() == b"one" and list(tmp_path.iterdir()) == [path]


def test_nowhere_to_write(tmp_path: Path) -> None:
    with pytest.raises(FolderError):
        write_file(tmp_path / "no" / "x", b"one")


def test_new_folder_appears_when_it_is_done(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "down"
    with new_folder(place) as scratch:
        (scratch / "a").write_text("1")
        assert not place.exists() and scratch.parent == place.parent
    assert (place / "a").read_text() == "1"
    assert [path.name for path in place.parent.iterdir()] == ["down"]


@pytest.mark.parametrize("exchange", [True, False])
def test_new_folder_takes_the_place_of_an_old_one(
    exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    place = tmp_path / "x"
    for text in ("1", "2"):
        with new_folder(place) as scratch:
            (scratch / text).touch()
    assert [path.name for path in place.iterdir()] == ["2"]
    assert list(tmp_path.iterdir()) == [place]


def test_a_new_folder_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    place = tmp_path / "x"
    with new_folder(place) as scratch:
        (scratch / "old").touch()
    with pytest.raises(KeyboardInterrupt), new_folder(place) as scratch:
        (scratch / "new").touch()
        raise KeyboardInterrupt
    assert [path.name for path in place.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [place]


def test_errors_of_the_disk_are_one_line_and_ours_pass() -> None:
    with pytest.raises(FolderError, match="a b: expected a readable file, got x y; try again"):  # noqa: SIM117
        with disk_errors("a\nb", remedy="try again"):
            raise OSError("x\ny")
    ours = UsageError(asked="a", expected="b", got="c", remedy="d")
    with pytest.raises(UsageError), disk_errors("x", remedy="y"):
        raise ours


def test_pointers(tmp_path: Path) -> None:
    assert pointed_at(tmp_path, LAST) is None and best_of(tmp_path) is None
    point(tmp_path, LAST, tmp_path / "checkpoints" / "step-00000007")
    assert best_of(tmp_path) == pointed_at(tmp_path, LAST) == tmp_path / "checkpoints" / "step-00000007"
    point(tmp_path, BEST, tmp_path / "checkpoints" / "step-00000003")
    assert best_of(tmp_path) == tmp_path / "checkpoints" / "step-00000003"


@pytest.mark.parametrize("name", [None, 3, "../elsewhere", "/etc", "a/b", "", "..", "."])
def test_a_pointer_stays_inside(name: object, tmp_path: Path) -> None:
    (tmp_path / LAST).write_bytes(seal({"checkpoint": name}))
    with pytest.raises(FolderError, match="the name of a checkpoint"):
        pointed_at(tmp_path, LAST)
