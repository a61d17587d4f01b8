"""Who must go before their time is told where the work can see it: a file, and a signal to those that listen."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.host.accounts import Account
from nodeagent.host.notices import VARIABLE, call, listens, notice_path, put_up, take_down
from nodeagent.protocol.codec import ProtocolError, decode, encode
from nodeagent.protocol.messages import Desired, DesiredLease, Notice
from tests.agent.builder import SimulatedNode


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path)


def lease(node: SimulatedNode, **more: object) -> DesiredLease:
    return DesiredLease("lse-1", 1, "vision", "bob", 3600, 20, (node.whole(),), **more)  # type: ignore[arg-type]


def notice_file(node: SimulatedNode) -> Path:
    (report,) = node.reports().values()
    return Path(report.access[0].env[VARIABLE])


def test_the_environment_names_a_file_that_is_not_there_until_there_is_something_to_say(
    node: SimulatedNode,
) -> None:
    node.desire(lease(node))

    assert not notice_file(node).exists()


def test_a_notice_is_written_the_holder_told_and_the_end_moved(node: SimulatedNode) -> None:
    node.desire(lease(node))
    node.desire(replace(lease(node), remaining_s=125, notice=Notice("reclaim", 120)))

    told = json.loads(notice_file(node).read_text())
    assert (told["lease"], told["why"]) == ("lse-1", "reclaim")
    assert datetime.fromisoformat(told["ends_at"]).tzinfo == UTC
    assert list(node.driver.told.values()) == ["reclaim"]
    node.pass_time(126)
    assert node.phases() == {"lse-1": "gone"}


def test_a_notice_is_given_once_and_taken_down_when_the_lease_is_spared(node: SimulatedNode) -> None:
    node.desire(lease(node))
    file = notice_file(node)
    told = replace(lease(node), remaining_s=125, notice=Notice("priority", 120))
    node.desire(told)
    node.driver.told.clear()
    file.write_text("as it was")
    node.desire(told)
    assert (file.read_text(), node.driver.told) == ("as it was", {})

    node.desire(lease(node))

    assert not file.exists()
    node.pass_time(200)
    assert node.phases() == {"lse-1": "ready"}


def test_an_end_that_moves_is_told_anew(node: SimulatedNode) -> None:
    node.desire(lease(node))
    node.desire(replace(lease(node), remaining_s=3605, notice=Notice("maintenance", 3600)))
    first = json.loads(notice_file(node).read_text())
    node.driver.told.clear()

    node.desire(replace(lease(node), remaining_s=1805, notice=Notice("maintenance", 1800)))

    moved = json.loads(notice_file(node).read_text())
    assert moved["ends_at"] < first["ends_at"]
    assert list(node.driver.told.values()) == ["maintenance"]


def test_a_restart_of_the_agent_keeps_what_was_told(node: SimulatedNode) -> None:
    node.desire(lease(node))
    node.desire(replace(lease(node), remaining_s=125, notice=Notice("elastic", 120)))
    node.start().work()

    assert list(node.driver.told.values()) == ["elastic"]
    node.pass_time(126)
    assert node.phases() == {"lse-1": "gone"}


def test_a_journal_of_an_earlier_version_is_read(node: SimulatedNode) -> None:
    node.desire(lease(node))
    journal = node.state / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        line.pop("told_why", None)
        line.pop("told_at", None)
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert node.start().phases() == {"lse-1": "ready"}


def test_the_file_goes_with_the_lease(node: SimulatedNode) -> None:
    node.desire(lease(node))
    file = notice_file(node)
    node.desire(replace(lease(node), remaining_s=125, notice=Notice("reclaim", 120)))
    node.desire()
    node.pass_time(30)
    node.reports()
    node.acknowledge()

    assert not file.exists()
    assert not file.parent.exists()


def test_a_notice_travels_and_one_without_costs_no_field() -> None:
    bare = DesiredLease("lse-1", 1, "vision", "bob", 60, 20, ())
    told = replace(bare, notice=Notice("reclaim", 30))

    assert decode(encode(Desired("gpu-01", 1, 1, (told,)))) == Desired("gpu-01", 1, 1, (told,))
    assert "notice" not in encode(Desired("gpu-01", 1, 1, (bare,)))


@pytest.mark.parametrize(
    "notice", [{"why": "because", "in_s": 3}, {"why": "reclaim", "in_s": -1}, {"why": "reclaim"}, "soon"]
)
def test_a_notice_that_makes_no_sense_is_refused(notice: object) -> None:
    frame = json.loads(encode(Desired("gpu-01", 1, 1, (DesiredLease("lse-1", 1, "v", "b", 60, 20, ()),))))
    frame["leases"][0]["notice"] = notice

    with pytest.raises(ProtocolError):
        decode(json.dumps(frame))


def test_only_processes_that_listen_are_signalled(tmp_path: Path) -> None:
    mask = 1 << (signal.SIGUSR1 - 1)
    for pid, caught in ((7, 0), (8, mask)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nSigCgt:\t{caught:016x}\n")

    def read(path: str) -> str:
        return (tmp_path / path.removeprefix("/proc/")).read_text()

    assert [listens(pid, read) for pid in (7, 8, 9)] == [False, True, False]


def test_a_process_with_a_handler_hears_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: heard.append(number))
    try:
        assert call([os.getpid()]) == [os.getpid()]
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert heard == [signal.SIGUSR1]


def test_a_lease_name_leads_nowhere_else(tmp_path: Path) -> None:
    path = notice_path(tmp_path / "notices", "../../etc/x")
    put_up(path, lease="../../etc/x", why="reclaim", ends_at=datetime.now(UTC))

    assert path.parent.parent == tmp_path / "notices"
    assert [file.name for file in path.parent.iterdir()] == ["notice.json"]
    assert {file.resolve() for file in (tmp_path / "notices").iterdir()} == {path, path.parent}


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12))
def test_no_two_leases_have_one_folder(lease: str) -> None:
    folder = Path("/run/x")
    others = {lease.replace(".", "_"), lease.replace("_", "."), lease.replace("=", "."), f"{lease}=2e"} - {
        lease
    }

    path = notice_path(folder, lease)

    assert path.parent.parent == folder
    assert path.parent.name not in (".", "..")
    assert path not in {notice_path(folder, other) for other in others if other}


def test_a_lease_with_a_dot_keeps_the_folder_that_an_older_agent_told_it(tmp_path: Path) -> None:
    facts = {"why": "reclaim", "ends_at": datetime.now(UTC)}
    path, told = notice_path(tmp_path, "a.b"), tmp_path / "a_b" / "notice.json"

    put_up(path, lease="a.b", **facts)

    assert json.loads(told.read_text())["lease"] == "a.b"
    take_down(path, is_over=True)
    assert list(tmp_path.iterdir()) == []


def test_a_lease_with_a_dot_leaves_its_neighbours_folder_alone(tmp_path: Path) -> None:
    facts = {"why": "reclaim", "ends_at": datetime.now(UTC)}
    neighbour, path = notice_path(tmp_path, "a_b"), notice_path(tmp_path, "a.b")
    put_up(neighbour, lease="a_b", **facts)

    put_up(path, lease="a.b", **facts)
    take_down(path, is_over=True)

    assert json.loads(neighbour.read_text())["lease"] == "a_b"
    assert json.loads((tmp_path / "a_b.json").read_text())["lease"] == "a_b"


def test_a_lease_that_an_older_agent_opened_finds_its_notice_where_it_was_told(tmp_path: Path) -> None:
    path, old = notice_path(tmp_path / "notices", "lse-1"), tmp_path / "notices" / "lse-1.json"
    facts = {"lease": "lse-1", "ends_at": datetime.now(UTC)}

    put_up(path, why="reclaim", **facts)
    put_up(path, why="maintenance", **facts)

    assert json.loads(old.read_text())["why"] == "maintenance"
    take_down(path)
    assert not old.is_symlink()


def test_a_notice_of_the_old_kind_makes_room_for_the_new_one(tmp_path: Path) -> None:
    path, old = notice_path(tmp_path, "lse-1"), tmp_path / "lse-1.json"
    old.write_text("told before the upgrade")

    put_up(path, lease="lse-1", why="reclaim", ends_at=datetime.now(UTC))

    assert old.read_text() == path.read_text()


def test_the_folder_stays_while_a_container_may_look_into_it_and_goes_with_the_lease(tmp_path: Path) -> None:
    path = notice_path(tmp_path, "lse-1")
    put_up(path, lease="lse-1", why="reclaim", ends_at=datetime.now(UTC))
    before = path.parent.stat().st_ino

    take_down(path)
    assert path.parent.stat().st_ino == before
    take_down(path, is_over=True)
    take_down(path, is_over=True)

    assert list(tmp_path.iterdir()) == []


def test_holders_pass_the_folder_whatever_the_umask_of_the_agent_is(tmp_path: Path) -> None:
    was = os.umask(0o077)
    try:
        path = notice_path(tmp_path, "lse-1")
        put_up(path, lease="lse-1", why="reclaim", ends_at=datetime.now(UTC))
    finally:
        os.umask(was)

    assert path.parent.stat().st_mode & 0o777 == 0o711


def test_root_gives_a_notice_to_its_holder_and_to_nobody_else(tmp_path: Path) -> None:
    path = notice_path(tmp_path / "notices", "a")

    def me(name: str) -> Account:
        assert name == "bob"
        return Account(os.getuid(), os.getgid(), "/home/bob", "bob")

    facts = {"lease": "a", "why": "reclaim", "ends_at": datetime.now(UTC)}
    put_up(path, **facts, user="bob", account=me, is_root=True)

    facts_of = path.stat()
    assert (facts_of.st_uid, facts_of.st_mode & 0o777) == (os.getuid(), 0o640)
    assert path.parent.stat().st_mode & 0o777 == 0o711


def test_the_holder_is_who_a_notice_is_given_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda fd, uid, gid: given.append((uid, gid)))
    people = {"bob": Account(1002, 1102, "/home/bob", "bob")}
    facts = {"lease": "a", "why": "reclaim", "ends_at": datetime.now(UTC), "account": people.__getitem__}

    put_up(tmp_path / "a.json", **facts, user="bob", is_root=True)
    put_up(tmp_path / "b.json", **facts, user="charlie", is_root=True)
    put_up(tmp_path / "c.json", **facts, user="bob", is_root=False)

    assert given == [(1002, 1102)]
    assert {json.loads((tmp_path / f"{name}.json").read_text())["why"] for name in "abc"} == {"reclaim"}
