"""Scratch folders: there while their lease is, its holder's alone, gone with it whatever lies in them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.host.accounts import Account
from nodeagent.reconcile.lease_records import new_record
from nodeagent.runtimes import scratch as scratch_module
from nodeagent.runtimes.base import LeaseGrant, RuntimeRefusedError
from nodeagent.runtimes.cdi import spec_of
from nodeagent.runtimes.host_folders import FolderRuntime, HostFolders
from nodeagent.runtimes.plain import PlainRuntime
from nodeagent.runtimes.scratch import ScratchFolders
from nodeagent.runtimes.unit import properties
from nodeagent.workloads.entry import EntryRefusedError, PlayedEntry, UnitEntry, start
from nodeagent.workloads.scratch_watch import ScratchWatch
from tests.agent.builder import RecordingRuntime, SimulatedNode, lease
from tests.agent.job_node import A, Node, job

ALICE = Account(1234, 1234, "/home/alice", "alice")
GRANT = LeaseGrant("a", 1, "alice", "vision", {}, (), ends_in_s=600, grace_s=5)


def themselves(user: str) -> Account | None:
    if user == "stranger":
        raise LookupError("this host has no account 'stranger'; add it")
    return ALICE if os.geteuid() == 0 else None


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[ScratchFolders]:
    folders = ScratchFolders(tmp_path / "scratch", themselves)
    yield folders
    folders.close()


@pytest.fixture
def node(tmp_path: Path, scratch: ScratchFolders) -> SimulatedNode:
    node = SimulatedNode(tmp_path)
    node.runtime = FolderRuntime(RecordingRuntime(), HostFolders(scratch))
    return node.start()


def filled(folder: Path) -> Path:
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "deep" / "model.bin").write_bytes(b"secret")
    return folder


def test_lease_has_a_folder_of_its_own_and_says_where(node: SimulatedNode, scratch: ScratchFolders) -> None:
    node.desire(lease("a", node.mig("1g.10gb", 0)), lease("b", node.mig("1g.10gb", 1)))

    told = {name: report.entrance["scratch"] for name, report in node.reports().items()}
    facts = Path(told["a"]).stat()
    assert told == {"a": str(scratch.root / "a-1"), "b": str(scratch.root / "b-1")}
    assert (facts.st_uid, facts.st_mode & 0o777) == (ALICE.uid if os.geteuid() == 0 else os.getuid(), 0o700)
    assert scratch.root.stat().st_mode & 0o777 == 0o711


def test_folder_goes_with_its_lease_and_no_other(node: SimulatedNode, scratch: ScratchFolders) -> None:
    node.desire(lease("a", node.mig("1g.10gb", 0)), lease("b", node.mig("1g.10gb", 1)))
    for name in "ab":
        filled(scratch.root / f"{name}-1")

    node.desire(lease("b", node.mig("1g.10gb", 1)))

    scratch.wait()
    assert node.phases() == {"a": "gone", "b": "ready"}
    assert scratch.keys() == [("b", 1)]
    assert list((scratch.root / ".removed").iterdir()) == []
    assert (scratch.root / "b-1" / "deep" / "model.bin").exists()


def test_folder_stays_as_long_as_something_runs_in_the_lease(tmp_path: Path, scratch: ScratchFolders) -> None:
    inner = RecordingRuntime()
    inner.stubborn.add("a")
    runtime = FolderRuntime(inner, HostFolders(scratch))
    runtime.open(GRANT)

    runtime.close(GRANT.key, kill=False)
    assert scratch.keys() == [GRANT.key]
    runtime.close(GRANT.key, kill=True)
    assert scratch.keys() == []


def test_what_a_killed_agent_left_is_removed_by_the_next(
    node: SimulatedNode, scratch: ScratchFolders
) -> None:
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    filled(scratch.root / "a-1")
    filled(scratch.make(("forgotten", 3), "alice"))
    filled(scratch.root / ".removed" / "half")
    node.runtime = FolderRuntime(RecordingRuntime(), HostFolders(ScratchFolders(scratch.root, themselves)))

    node.start().look()
    node.desire(lease("a", node.mig("1g.10gb", 0)))

    assert node.phases()["a"] == "ready"
    assert scratch.keys() == [("a", 1)]
    assert (scratch.root / "a-1" / "deep" / "model.bin").exists()


def test_reboot_leaves_no_folder_of_a_lease_that_did_not_outlive_it(
    node: SimulatedNode, scratch: ScratchFolders
) -> None:
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    filled(scratch.root / "a-1")
    node.runtime = FolderRuntime(RecordingRuntime(), HostFolders(scratch))

    node.reboot().look()
    node.desire()
    node.look()
    node.pass_time(60)

    assert node.phases() == {"a": "gone"}
    assert scratch.keys() == []


def test_folder_that_somebody_removed_is_made_again(node: SimulatedNode, scratch: ScratchFolders) -> None:
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    (scratch.root / "a-1").rmdir()

    node.look()
    node.work()

    assert (scratch.root / "a-1").is_dir()
    assert node.phases() == {"a": "ready"}


def test_no_lease_without_its_folder(tmp_path: Path, scratch: ScratchFolders) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (scratch.root / "a-1").symlink_to(outside)
    inner = RecordingRuntime()
    runtime = FolderRuntime(inner, HostFolders(scratch))

    words = []
    for grant in (GRANT, replace(GRANT, lease="b", user="stranger")):
        with pytest.raises(RuntimeRefusedError) as no:
            runtime.open(grant)
        words.append(no.value.word)

    assert words == ["scratch", "no_account"]
    assert inner.open_leases == {}
    assert outside.stat().st_uid == os.getuid()


def test_disk_that_refuses_holds_no_device_back(
    node: SimulatedNode, scratch: ScratchFolders, monkeypatch, caplog
) -> None:
    node.desire(lease("a", node.mig("1g.10gb", 0)))

    def refuse(*_words: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    node.desire()
    node.look()

    assert node.phases() == {"a": "gone"}
    assert "remove it by hand" in caplog.text
    assert scratch.keys() == []  # nothing tries for ever


def test_folder_that_others_may_write_to_is_no_place_for_scratch(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    with pytest.raises(PermissionError, match="others may write"):
        ScratchFolders(tmp_path / "open", themselves)


def test_way_in_by_a_file_and_by_a_container_has_the_folders(tmp_path: Path, scratch: ScratchFolders) -> None:
    data = tmp_path / "data"
    for team in ("vision", "speech"):
        (data / team).mkdir(parents=True)
    folders = HostFolders(scratch, data)
    runtime = FolderRuntime(PlainRuntime(tmp_path / "run", is_root=False), folders)

    entrance = runtime.open(GRANT)
    edits = spec_of(folders.added(GRANT))["devices"][0]["containerEdits"]

    lines = Path(entrance.words["env_file"]).read_text().splitlines()
    assert lines == [f"export BERTH_DATA_SETS={data}/vision", f"export BERTH_SCRATCH={scratch.root}/a-1"]
    mounts = {one["hostPath"]: one["options"][0] for one in edits["mounts"]}
    assert mounts == {f"{scratch.root}/a-1": "rw", f"{data}/vision": "ro"}
    assert entrance.words["data"] == f"{data}/vision"


def test_unit_sees_the_data_sets_of_its_own_team_alone_and_only_reads_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for team in ("vision", "speech"):
        (data / team).mkdir(parents=True)

    shown = [one for one in properties(HostFolders(data=data).added(GRANT), ALICE) if str(data) in one]

    assert shown == [f"TemporaryFileSystem={data}:ro", f"BindReadOnlyPaths={data}/vision"]
    assert not any("TemporaryFileSystem" in one for one in properties(GRANT, ALICE))


@pytest.mark.parametrize("team", ["../speech", "..", "", "a/b", "linked", "nowhere"])
def test_team_without_a_plain_folder_has_no_data_sets(tmp_path: Path, team: str) -> None:
    data = tmp_path / "data"
    (data / "speech").mkdir(parents=True)
    (data / "linked").symlink_to(tmp_path)

    assert HostFolders(data=data).data_of(team) is None


def test_played_program_finds_its_scratch_folder_which_goes_with_the_lease(tmp_path: Path) -> None:
    scratch = ScratchFolders(tmp_path / "scratch", lambda user: None)
    entry = PlayedEntry(
        tmp_path, lambda record: tmp_path / "n" / "notice.json", lambda: 0, folders=HostFolders(scratch)
    )
    entry._account = None  # pytest's folders are closed to nobody
    record = new_record(lease("lse-1"), 0)
    words = ["/bin/sh", "-c", 'echo "$BERTH_SCRATCH"; touch "$BERTH_SCRATCH/here"']

    with start(entry.command(record, words), stdout=subprocess.PIPE) as process:
        shown = process.communicate(timeout=20)[0].decode().strip()
    made = (scratch.root / "lse-1-1" / "here").exists()
    seen = entry.seen_folders(record)
    entry.clear(record.key)
    entry.close()

    assert made
    assert seen == {shown: False}
    assert shown == str(scratch.path_of(record.key))
    assert scratch.keys() == []
    scratch.close()


def test_played_program_does_not_start_without_its_folder(tmp_path: Path, monkeypatch) -> None:
    scratch = ScratchFolders(tmp_path / "scratch", lambda user: None)
    entry = PlayedEntry(tmp_path, lambda record: tmp_path, lambda: 0, folders=HostFolders(scratch))
    (scratch.root / "lse-1-1").write_text("in its place")

    with pytest.raises(EntryRefusedError, match="no scratch folder"):
        entry.command(new_record(lease("lse-1"), 0))
    scratch.close()


def test_next_job_of_a_lease_in_a_unit_finds_the_folder_empty(
    scratch: ScratchFolders, tmp_path: Path
) -> None:
    entry = UnitEntry(tmp_path, lambda key: 1, lambda key: [], folders=HostFolders(scratch))
    folder = filled(scratch.make(GRANT.key, "alice"))
    owner = folder.stat().st_uid

    entry.remove_folders(GRANT.key)

    assert list(folder.iterdir()) == []
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (owner, 0o700)
    entry.clear(GRANT.key)
    assert folder.exists()  # that of a unit goes with the unit


def test_leases_that_ended_while_no_agent_was_there_leave_nothing(scratch: ScratchFolders) -> None:
    for name in "abc":
        filled(scratch.make((name, 1), "alice"))

    scratch.keep_only([("b", 1), ("d", 1)])

    scratch.wait()
    assert scratch.keys() == [("b", 1)]


async def test_lease_that_fills_its_scratch_folder_ends_and_says_why(
    node: SimulatedNode, scratch: ScratchFolders, monkeypatch
) -> None:
    monkeypatch.setattr(scratch_module, "GIB_OF_KIB", 64)
    scratch.limit_gib = 2
    node.desire(lease("a", node.mig("1g.10gb", 0)), lease("b", node.mig("1g.10gb", 1)))
    (scratch.root / "a-1" / "large").write_bytes(b"x" * 150_000)
    (scratch.root / "b-1" / "small").write_bytes(b"x" * 50_000)
    woken: list[bool] = []
    watch = ScratchWatch(node.reconciler, scratch, node.time, lambda: woken.append(True))

    await watch.look()
    draining = node.reports()["a"]
    node.work()

    assert (draining.phase, draining.reason) == ("draining", "scratch_full")
    assert draining.detail == "its scratch folder holds 3 GiB; this node gives 2 GiB"
    assert woken == [True]
    assert node.phases() == {"a": "gone", "b": "ready"}
    assert node.reports()["b"].entrance["scratch_gib"] == "2"


async def test_what_cannot_be_measured_ends_nobody(
    node: SimulatedNode, scratch: ScratchFolders, monkeypatch
) -> None:
    scratch.limit_gib = 1
    node.desire(lease("a", node.mig("1g.10gb", 0)))

    def too_slow(*words: object, **more: object) -> None:
        raise subprocess.TimeoutExpired("du", 60)

    monkeypatch.setattr(scratch_module.subprocess, "run", too_slow)
    await ScratchWatch(node.reconciler, scratch, node.time, lambda: None).look()

    assert node.phases() == {"a": "ready"}


async def test_what_the_job_before_left_ends_nobody(
    node: SimulatedNode, scratch: ScratchFolders, monkeypatch
) -> None:
    scratch.limit_gib = 1
    node.desire(lease("a", node.mig("1g.10gb", 0)))

    def measured(*words: object, **more: object) -> subprocess.CompletedProcess[bytes]:
        scratch.empty(("a", 1))  # the next job follows while the disk is being read
        return subprocess.CompletedProcess((), 0, b"9000000\t/scratch\n")

    monkeypatch.setattr(scratch_module.subprocess, "run", measured)
    await ScratchWatch(node.reconciler, scratch, node.time, lambda: None).look()

    assert node.phases() == {"a": "ready"}


async def test_job_in_a_lease_that_is_too_full_is_asked_to_end(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(scratch_module, "GIB_OF_KIB", 64)
    scratch = ScratchFolders(tmp_path / "scratch", lambda user: None, 1)
    node = Node(tmp_path)
    fill = 'head -c 200000 /dev/zero > "$BERTH_SCRATCH/x"; echo full'
    script = f'trap "echo asked; exit 7" TERM; {fill}; sleep 1000 & wait'
    node.folders = HostFolders(scratch)
    async with node.alive():
        node.entry._account = None  # pytest's folders are closed to nobody
        node.desire(job(A, "/bin/sh", "-c", script))
        await node.until(A, "running")
        async with asyncio.timeout(20):
            while b"full" not in node.output(A):
                await node.pause()
        await ScratchWatch(node.reconciler, scratch, node.worker._clock, node.worker.poke).look()
        report = await node.until(A, "exited", "lost")
        output, reason = node.output(A), node.record(A).reason
        await node.idle()
    scratch.wait()

    assert (report.exit, reason) == (7, "scratch_full")
    assert output.endswith(b"asked\n")
    assert scratch.keys() == []
    scratch.close()
