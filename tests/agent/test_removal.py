"""Folders that others have filled, as badly as they can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.host import removal
from nodeagent.host.removal import remove_tree


@pytest.mark.deep
def test_very_deep_and_very_full_folders_go(tmp_path, monkeypatch):
    monkeypatch.setattr(removal, "AT_ONCE", 3)
    top = tmp_path / "scratch"
    (top / "flat").mkdir(parents=True)
    for number in range(20):
        (top / "flat" / f"{number}").touch()
        (top / f"beside-{number}").mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        deeper = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = deeper
    os.close(os.open("at-the-end", os.O_CREAT, dir_fd=at))
    os.close(at)

    assert remove_tree(top) is None
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_never_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "kept").touch()
    top = tmp_path / "scratch"
    (top / "inner").mkdir(parents=True)
    (top / "inner" / "link").symlink_to(outside)
    (top / "loop").symlink_to(".")

    assert remove_tree(top) is None
    assert (outside / "kept").exists()
    assert outside.stat().st_mode & 0o777 == 0o750


def test_link_in_place_of_the_folder_goes_alone(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tmp_path / "scratch").symlink_to(outside)

    assert remove_tree(tmp_path / "scratch") is None
    assert remove_tree(tmp_path / "never-there") is None
    assert [one.name for one in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not do everything")
def test_what_its_owner_closed_goes_too(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    for folder in tmp_path.parents[: len(tmp_path.parents) - 2]:
        folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o777)
    try:
        os.seteuid(65534)
        for name in ("closed", "read-only"):
            (home / name / "deep" / "deeper").mkdir(parents=True)
            (home / name / "deep" / "file").touch()
        (home / "closed" / "deep").chmod(0)
        (home / "closed").chmod(0)
        (home / "read-only" / "deep").chmod(0o500)
        (home / "read-only").chmod(0o500)

        assert remove_tree(home) is None
    finally:
        os.seteuid(0)
    assert not home.exists()


def test_what_cannot_be_removed_is_named_and_the_rest_goes(tmp_path, monkeypatch):
    top = tmp_path / "scratch"
    (top / "inner").mkdir(parents=True)
    for name in ("a", "held", "z"):
        (top / "inner" / name).touch()
    unlink = os.unlink

    def refuses(name: str, *, dir_fd: int | None = None) -> None:
        if name == "held":
            raise PermissionError(1, "not permitted")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuses)

    assert remove_tree(top) == top / "inner" / "held"
    assert [one.name for one in (top / "inner").iterdir()] == ["held"]


def test_same_place_may_be_removed_by_two_at_once(tmp_path, monkeypatch):
    top = tmp_path / "scratch"
    (top / "inner" / "more").mkdir(parents=True)
    rename = os.rename

    def too_late(name: str, other: str, **folders: int) -> None:
        rename(name, other, **folders)
        Path(top / other).rmdir()

    monkeypatch.setattr(os, "rename", too_late)

    assert remove_tree(top) is None
