"""The agent of a pool as it is started: its options, its clock over restarts, and its life with a portal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from nodeagent import cli
from nodeagent.backends.clock import LostPoolError, PoolClock
from nodeagent.backends.leases import PoolLeases
from nodeagent.backends.worker import PoolWorker
from nodeagent.commands.pools import settings_of
from nodeagent.host.clock import boot_clock
from nodeagent.link.address import Address
from nodeagent.link.agent import Agent
from nodeagent.link.enrolment import NodeEnrolment
from nodeagent.link.identity import Identity
from nodeagent.protocol.messages import POOL, DesiredLease, DesiredSlot
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import NS
from tests.agent.fake_portal import FakePortal, listening
from tests.agent.pools.fake_cluster import FakeCluster

POOL_WORDS = (
    "--driver",
    "slurm",
    "--slurm-partition",
    "gpu",
    "--slurm-gres",
    "gpu:a100",
    "--slurm-user",
    "games",
)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "--slurm-memory"),
        (("--slurm-partition", "a b"), "--slurm-partition"),
        (("--slurm-gres", "gpu:a100:8"), "--slurm-gres"),
        (("--slurm-model", "a100-80gb", "--slurm-account", "x;y"), "--slurm-account"),
        (("--slurm-memory", "0"), "whole number"),
        (("--slurm-memory", "80", "--runtime", "cdi"), "--runtime is not known to --driver slurm"),
    ],
)
def test_description_of_a_pool_that_makes_no_sense_ends_the_start(words, sentence, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    code = cli.main(["check", "--node", "p", "--state", str(tmp_path), *POOL_WORDS, *words], {})

    assert code == cli.USAGE
    assert sentence in capsys.readouterr().err


def test_pool_is_described_by_variables_and_known_boards_bring_their_memory() -> None:
    environ = {
        "BERTH_DRIVER": "slurm",
        "BERTH_SLURM_PARTITION": "gpu",
        "BERTH_SLURM_GRES": "gpu:x",
        "BERTH_SLURM_USER": "u",
    }
    known = cli.parser({**environ, "BERTH_SLURM_MODEL": "a100-80gb"}).parse_args([])
    other = cli.parser({**environ, "BERTH_SLURM_MEMORY_GIB": "24"}).parse_args([])

    found = [settings_of(known), settings_of(other)]

    assert [(one.model, one.memory_mib) for one in found] == [("a100-80gb", 81920), ("x", 24576)]


def test_time_goes_on_over_restarts_of_the_host(tmp_path: Path) -> None:
    file = tmp_path / "pool.json"
    first = PoolClock(file, "boot-1", lambda: 500 * NS, lambda: 10_000 * NS)
    again = PoolClock(file, "boot-1", lambda: 600 * NS, lambda: 99 * NS)  # somebody set the wall clock
    again.note()
    written = json.loads(file.read_text())
    file.write_text(json.dumps(written | {"wall": 10_100 * NS}))
    later = PoolClock(file, "boot-2", lambda: 7 * NS, lambda: 10_400 * NS)

    assert [first(), again(), later()] == [500 * NS, 600 * NS, 900 * NS]
    assert first.pool_id == again.pool_id == later.pool_id


@pytest.mark.parametrize("text", ["", "torn", "[]", '{"pool_id": "p00l"}'])
def test_pool_whose_file_is_damaged_does_not_become_another_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pool.json"
    file.write_text(text)

    with pytest.raises(LostPoolError, match="bring it back"):
        PoolClock(file, "boot-1", lambda: 1, lambda: 1)
    assert file.read_text() == text


async def test_lease_of_a_portal_becomes_a_job_and_ends_with_it(tmp_path: Path) -> None:
    cluster, portal = FakeCluster(), FakePortal()
    leases = PoolLeases(
        "gpu-01", cluster, Journal(tmp_path / "journal.jsonl"), 16, patience_s=240, pool_id="p00l"
    )
    worker = PoolWorker(leases, cluster, boot_clock)
    enrolment = NodeEnrolment(Identity("gpu-01", tmp_path), lambda: "once")
    async with listening(portal) as port:
        agent = Agent(
            Address(f"ws://127.0.0.1:{port}/agent/v1", True),
            enrolment,
            leases.driver,
            worker,
            features=(POOL,),
        )
        task = asyncio.create_task(agent.run())
        try:
            await portal.until(lambda _m: True)
            slot = DesiredSlot(next(iter(leases.devices)), "exclusive", 0, 1, 1000, 81920)
            await portal.desire(DesiredLease("l1", 1, "vision", "bob", 600, 0, (slot,)))
            await portal.phase("l1", "preparing")
            cluster.start()
            ready = await portal.phase("l1", "ready")
            await portal.desire()
            gone = await portal.phase("l1", "gone")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            worker.close()

    assert portal.hellos[0].driver == "slurm"
    assert POOL in portal.hellos[0].features
    assert len(portal.hellos[0].devices) == 16
    assert (ready.leases[0].entrance["job"], ready.power) == ("1", "unsupported")
    assert gone.leases[0].reason == "withdrawn"
    assert cluster.live() == []
