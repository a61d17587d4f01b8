from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal.embedded.errors import CannotStart
from portal.embedded.places import (
    LONGEST_SOCKET,
    POSTGRES_SOCKET,
    StackPaths,
    SystemAccount,
    can_reach,
    engine_account,
    lay_out,
    socket_folder,
)

US = SystemAccount("us", os.geteuid(), os.getegid())


@pytest.fixture(autouse=True)
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary folder of this test's own, short enough for sockets, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="b", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def test_a_data_folder_longer_than_a_socket_name_still_has_a_socket_that_binds(tmp_path: Path) -> None:
    data = tmp_path / ("deep" * 30) / ("deeper" * 20)
    assert len(os.fsencode(data)) > 200

    places = lay_out(data, US)

    for name in (places.valkey_socket, places.postgres_sockets / POSTGRES_SOCKET):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(name))
        name.unlink()
    assert data.is_dir()


@pytest.mark.parametrize("tmp", ["/" + "x" * 120, "/var/tmp/with space", "/var/tmp/per%cent"])
def test_a_temporary_folder_that_no_socket_url_can_carry_is_not_used(tmp: str) -> None:
    folder = socket_folder(Path("/data"), Path(tmp))

    assert folder.parent == Path("/tmp")
    assert len(os.fsencode(folder / "pg" / POSTGRES_SOCKET)) <= LONGEST_SOCKET


def test_the_socket_folder_is_the_same_at_every_start_and_differs_between_data_folders() -> None:
    tmp = Path("/tmp")

    assert socket_folder(Path("/a"), tmp) == socket_folder(Path("/a"), tmp)
    assert socket_folder(Path("/a"), tmp) != socket_folder(Path("/b"), tmp)


def test_a_path_with_spaces_is_laid_out_and_closed_to_others(tmp_path: Path) -> None:
    places = lay_out(tmp_path / "my data", US)

    assert places.cluster.parent.is_dir()
    assert stat.S_IMODE(places.data.stat().st_mode) == 0o700
    assert stat.S_IMODE(places.enrolment.stat().st_mode) == 0o700


def test_a_socket_folder_that_somebody_else_made_first_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    bait = socket_folder(Path(os.path.realpath(data)), tmp_path)
    (tmp_path / "elsewhere").mkdir()
    bait.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(CannotStart, match="belongs to another user") as refusal:
        lay_out(data, US, tmp=tmp_path)

    assert refusal.value.code == "foreign_folder"


def test_a_data_folder_that_is_a_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")

    with pytest.raises(CannotStart, match="set BERTH_DATA"):
        lay_out(tmp_path / "data", US)


def test_addresses_are_read_the_same_way_by_django_and_by_the_broker() -> None:
    import environ
    from redis.connection import parse_url

    places = StackPaths(Path("/data"), Path("/data/postgres"), Path("/tmp/berth-0123456789"))

    database = environ.Env.db_url_config(places.database_url("berth"))
    broker = parse_url(places.redis_url(3))

    assert (database["NAME"], database["USER"]) == ("berth", "berth")
    assert database["OPTIONS"]["host"] == "/tmp/berth-0123456789/pg"
    assert (broker["path"], broker["db"]) == ("/tmp/berth-0123456789/valkey.sock", 3)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to hand PostgreSQL to somebody else")
def test_as_root_a_folder_closed_to_others_is_neither_opened_nor_used_for_the_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = engine_account()
    with tempfile.TemporaryDirectory() as name:
        room = Path(name)
        room.chmod(0o755)
        closed, open_room = room / "closed", room / "open"
        closed.mkdir(mode=0o700)
        open_room.mkdir(mode=0o755)
        monkeypatch.setattr("portal.embedded.places.OPEN_FOLDERS", (open_room,))

        places = lay_out(closed / "data", nobody)

        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
        assert places.postgres.parent == open_room
        assert places.postgres.stat().st_uid == nobody.uid
        assert can_reach(nobody, places.postgres)
        assert not can_reach(nobody, closed / "data")
