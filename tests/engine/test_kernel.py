from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.engine import kernel


def shift(number: int) -> int:
    return number + STEP


STEP = 1


def twice(number: int) -> int:
    return shift(shift(number))


def test_a_kernel_can_be_given_other_helpers_without_touching_the_first() -> None:
    def by_ten(number: int) -> int:
        return number + 10

    other = kernel.specialise(twice, "twice_by_ten", shift=by_ten)

    assert (other(1), twice(1)) == (21, 3)
    assert other.__name__ == "twice_by_ten"


def test_the_compiler_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_KERNELS", "python")

    assert not kernel.can_compile()


def test_compiled_code_is_kept_in_a_private_folder_and_old_ones_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for age in range(9):
        folder = tmp_path / f"berth-kernels-{age}"
        folder.mkdir()
        os.utime(folder, (1000 - age, 1000 - age))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    folder = kernel._cache_dir.__wrapped__()

    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    left = sorted(one.name for one in tmp_path.iterdir() if one != folder)
    assert left == [f"berth-kernels-{age}" for age in range(kernel.KEPT)]


def test_without_a_home_compiled_code_lives_in_a_folder_of_the_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "file")

    assert kernel._cache_dir.__wrapped__().is_dir()
