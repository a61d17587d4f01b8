from __future__ import annotations

from pathlib import Path

import pytest

from portal.embedded import discovery, postgres, valkey
from portal.embedded.discovery import Engine
from portal.embedded.errors import CannotStart
from portal.embedded.places import SystemAccount

NOTHING = {"PATH": "/nonexistent"}


def program(path: Path, says: str) -> Path:
    """A stand-in for a server: it only tells its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(discovery, "_package_folder", lambda _name: None)
    monkeypatch.setattr(discovery, "DEBIAN_POSTGRES", tmp_path / "none")


def test_the_wheels_are_found_first() -> None:
    found = discovery.postgres({"PATH": "/usr/local/bin:/usr/bin"})

    assert (found.source, found.major) == ("wheel", 18)
    assert (found.bin / "initdb").exists()
    assert discovery.valkey({}).source == "wheel"


def test_without_wheels_the_servers_on_path_are_taken(no_wheels: None, tmp_path: Path) -> None:
    program(tmp_path / "postgres", "postgres (PostgreSQL) 17.2 (Debian)")
    program(tmp_path / "redis-server", "Redis server v=7.0.15 sha=0:0 malloc=libc bits=64")

    env = {"PATH": str(tmp_path)}

    assert discovery.postgres(env).version == "17.2"
    assert discovery.valkey(env) == Engine(tmp_path / "redis-server", "7.0.15", "PATH")


def test_a_folder_that_a_person_names_wins(tmp_path: Path) -> None:
    program(tmp_path / "postgres", "postgres (PostgreSQL) 16.4")

    assert discovery.postgres({"BERTH_PG_BIN": str(tmp_path)}).source == "BERTH_PG_BIN"


def test_nothing_found_says_what_to_do(no_wheels: None) -> None:
    with pytest.raises(CannotStart, match="DATABASE_URL"):
        discovery.postgres(NOTHING)
    with pytest.raises(CannotStart, match="REDIS_URL"):
        discovery.valkey(NOTHING)


def test_a_program_too_old_or_for_another_machine_counts_as_not_found(
    no_wheels: None, tmp_path: Path
) -> None:
    program(tmp_path / "postgres", "postgres (PostgreSQL) 13.3")
    (tmp_path / "valkey-server").write_bytes(b"\x7fELF for something else")
    (tmp_path / "valkey-server").chmod(0o755)

    for find in (discovery.postgres, discovery.valkey):
        with pytest.raises(CannotStart):
            find({"PATH": str(tmp_path)})


def test_data_keeps_the_major_version_that_made_it() -> None:
    assert discovery.postgres(NOTHING, cluster_major=16).major == 16


def test_data_of_a_major_that_is_not_here_is_refused_with_the_way_out() -> None:
    with pytest.raises(CannotStart, match=r"made by PostgreSQL 12.*pg_dump"):
        discovery.postgres(NOTHING, cluster_major=12)


def test_the_version_of_a_cluster_is_read_from_its_own_mark(tmp_path: Path) -> None:
    assert postgres.cluster_major(tmp_path) is None

    (tmp_path / "PG_VERSION").write_text("18\n")

    assert postgres.cluster_major(tmp_path) == 18


def test_an_engine_its_account_cannot_enter_is_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = SystemAccount("nobody", 65534, 65534)
    program(tmp_path / "site/pgserver/pg18/bin/postgres", "")
    program(tmp_path / "site/pgserver/pg18/include/c.h", "")
    program(tmp_path / "site/pgserver.libs/libpq.so", "")
    monkeypatch.setattr(postgres, "can_reach", lambda _account, _path: False)
    monkeypatch.setattr(postgres.os, "chown", lambda *_: None)
    engine = Engine(tmp_path / "site/pgserver/pg18/bin/postgres", "18.4", "wheel")

    copy = postgres.within_reach(engine, nobody, tmp_path / "home")

    assert copy.program == tmp_path / "home/engine-18.4/pgserver/pg18/bin/postgres"
    assert (copy.bin / "../../../pgserver.libs/libpq.so").exists()
    assert not (copy.bin.parent / "include").exists()
    assert postgres.within_reach(engine, nobody, tmp_path / "home") == copy


def test_the_server_is_durable_and_listens_on_no_network() -> None:
    engine = Engine(Path("/pg/bin/postgres"), "18.4", "wheel")

    line = postgres.command(engine, Path("/data"), Path("/tmp/s"), postgres.SETTINGS)

    for wanted in ("--listen_addresses=", "--fsync=on", "--synchronous_commit=on", "--full_page_writes=on"):
        assert wanted in line
    assert '--unix_socket_directories="/tmp/s"' in line


def test_the_broker_listens_on_no_network_and_keeps_nothing() -> None:
    engine = Engine(Path("/valkey-server"), "9.1.2", "wheel")

    line = valkey.command(engine, Path("/tmp/s/valkey.sock"), Path("/data"))

    assert line[line.index("--port") + 1] == "0"
    assert line[line.index("--save") + 1] == ""
    assert line[line.index("--maxmemory-policy") + 1] == "noeviction"
