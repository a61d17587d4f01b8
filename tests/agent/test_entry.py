"""Ways into a lease: the command for a unit, and programs of played holders."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.commands.enter import given_env
from nodeagent.host.accounts import Account
from nodeagent.protocol.messages import DesiredLease
from nodeagent.reconcile.lease_records import new_record
from nodeagent.workloads.entry import EntryRefusedError, PlayedEntry, UnitEntry, start


def record() -> Any:
    return SimpleNamespace(lease="lse-1", generation=3, key=("lse-1", 3), user="bob")


def me(name: str) -> Account:
    return Account(os.getuid(), os.getgid(), "/home/bob", name)


def played(tmp_path: Path) -> PlayedEntry:
    return PlayedEntry(tmp_path, lambda record: tmp_path / "n" / "notice.json", lambda: 0)


def test_shell_in_a_unit_goes_by_enter_from_the_units_own_view_of_the_host(tmp_path):
    command = UnitEntry(tmp_path, lambda key: 4711, lambda key: [], me).command(record())

    assert command.words[:5] == ["nsenter", "--target", "4711", "--mount", "--"]
    assert command.words[6:] == [
        "-I", "-m", "nodeagent", "enter", "lse-1", "--", "/bin/sh", "-c", 'cd 2>/dev/null; exec "$SHELL" -l',
    ]  # fmt: skip
    assert command.account is None
    assert command.holder == me("bob")


def test_secret_for_a_program_in_a_unit_is_in_no_command_line(tmp_path):
    command = UnitEntry(tmp_path, lambda key: 4711, lambda key: [], me).command(
        record(), ["run", "it"], {"TOKEN": "s3cret"}
    )

    assert command.words[-4:] == ['cd 2>/dev/null; exec "$@"', "sh", "run", "it"]
    assert "s3cret" not in " ".join(command.words)
    assert given_env(command.env) == {"TOKEN": "s3cret"}


def inside(_key: object) -> list[int]:
    return []


def test_nothing_starts_in_a_unit_that_is_not_there_or_for_somebody_without_an_account(tmp_path):
    def nobody(name: str) -> Account:
        raise LookupError(f"this host has no account {name!r}")

    for entry in (
        UnitEntry(tmp_path, lambda key: 0, inside, me),
        UnitEntry(tmp_path, lambda key: 9, inside, nobody),
    ):
        with pytest.raises(EntryRefusedError):
            entry.command(record())


def test_run_folder_of_a_unit_is_its_holders_alone_and_goes_with_the_lease(tmp_path):
    entry = UnitEntry(tmp_path, lambda key: 4711, lambda key: [], me)

    folder = entry.run_folder(record())
    facts = entry.run_folder(record()).stat()
    entry.clear(("lse-1", 3))

    assert (facts.st_uid, facts.st_mode & 0o777) == (os.getuid(), 0o700)
    assert not folder.exists()


def test_all_of_a_unit_but_one_process_and_its_first_is_ended_or_it_is_said(tmp_path):
    started = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(4)]
    first, collector, *others = started

    def alive(_key: object) -> list[int]:
        return [one.pid for one in started if one.poll() is None]

    try:
        entry = UnitEntry(tmp_path, lambda key: first.pid, alive, me)
        is_done = entry.keep_only(("lse-1", 3), collector.pid)

        assert is_done
        assert [one.poll() for one in (first, collector)] == [None, None]
        assert [one.wait(5) for one in others] == [-9, -9]
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_process_of_a_unit_that_does_not_go_is_told_of(tmp_path):
    with subprocess.Popen(["true"]) as stuck:  # not waited for: listed as what hangs in a driver is
        entry = UnitEntry(tmp_path, lambda key: 0, lambda key: [stuck.pid], me)

        assert not entry.keep_only(("lse-1", 3), 1)


def test_played_program_gets_the_leases_variables_its_own_and_a_home(tmp_path):
    entry = played(tmp_path)
    lease = new_record(DesiredLease("lse-1", 3, "perception", "bob", 3600, 1, ()), 0)
    words = ["/bin/sh", "-c", 'echo "$BERTH_LEASE $TOKEN $(id -u) $PWD" && test "$PWD" = "$HOME"']

    process = start(entry.command(lease, words, {"TOKEN": "x"}), stdout=subprocess.PIPE)
    shown = process.communicate(timeout=20)[0].decode().split()
    entry.clear(lease.key)
    entry.close()

    assert process.returncode == 0
    assert shown[:2] == ["lse-1", "x"]
    assert shown[2] != "0"
    assert not Path(shown[3]).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can show that root is left")
def test_folders_of_a_played_lease_are_nobodys_and_go_with_it(tmp_path):
    entry = played(tmp_path)
    folders = [entry._made(("lse-1", 3)), entry.run_folder(record())]

    facts = [folder.stat() for folder in folders]
    entry.clear(("lse-1", 3))
    entry.close()

    assert {(fact.st_uid, fact.st_mode & 0o777) for fact in facts} == {(65534, 0o700)}
    assert not any(folder.exists() or folder.parent.exists() for folder in folders)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that other accounts can pass: those of pytest are root's alone."""
    with tempfile.TemporaryDirectory(prefix="berth-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave what nobody else removes")
def test_what_root_left_in_a_home_is_named_the_rest_goes_and_the_next_lease_begins(open_path, caplog):
    state, outside = open_path / "state", open_path / "outside"
    for folder in (state, outside):
        folder.mkdir()
        os.chown(folder, 65534, 65534)
    (outside / "kept").touch()
    try:
        os.seteuid(65534)
        entry = played(state)
        home = entry._made(("lse-1", 3))
        (home / "closed" / "deep").mkdir(parents=True)
        (home / "link").symlink_to(outside)
        (home / "closed").chmod(0)
        os.seteuid(0)
        (home / "of-root").mkdir()
        (home / "of-root" / "model.bin").touch()
        os.seteuid(65534)

        entry.clear(("lse-1", 3))
        again, following = entry._made(("lse-1", 3)), entry._made(("lse-2", 1))
        entry.clear(("lse-2", 1))
    finally:
        os.seteuid(0)

    assert [one.name for one in again.iterdir()] == ["of-root"]
    assert f"{home}/of-root; remove it as root" in caplog.text
    assert (outside / "kept").exists()
    assert not following.exists()


def test_limit_of_processes_is_never_above_what_the_agent_itself_may_have(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (50, 60))

    assert "--nproc=60:60" in played(tmp_path)._bound
