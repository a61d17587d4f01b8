"""The sockets by which a node brings what its jobs print and leave: live, whole, and only in frames that make sense."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from nodeagent.jobs.folder import FILES, FOUND, JobFolder
from nodeagent.jobs.runner import Output
from nodeagent.jobs.shipping import OutputShipping
from nodeagent.link.address import address_of
from nodeagent.protocol.messages import LARGE_PIECES, Welcome
from nodeagent.streams.gateways import greet
from portal.agents.consumers import CLOSE_BAD_FRAME
from portal.fleet.models import Node
from portal.jobs.artifacts import read_artifact
from portal.jobs.logs import read_log
from portal.jobs.models import Artifact, JobAttempt
from tests.gateway.running import NodeEnd, serving, until, unused_port
from tests.jobs.test_jobs import hand_in
from tests.portal.builders import World
from tests.telemetry.conftest import rows

pytestmark = pytest.mark.django_db(transaction=True)


class OneJob:
    """A job of a node, as the agent's jobs are to whoever carries their output."""

    is_ended = False

    def is_over(self, _key: tuple[str, int], _ordinal: int = 1) -> bool:
        return self.is_ended

    async def run(self) -> None:
        await asyncio.Event().wait()


async def test_lines_come_while_the_job_runs_and_all_of_it_over_another_gateway(
    world: World, tmp_path: Path, settings: Any
) -> None:
    options = {"location": str(tmp_path / "store")}
    backend = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options}
    settings.STORAGES = {**settings.STORAGES, "jobs": backend}
    lease = await rows(lambda: world.active("bob"))
    (job,) = await rows(lambda: hand_in(world))
    attempt = await rows(
        lambda: JobAttempt.objects.create(job=job, number=1, lease=lease, started_at=world.now)
    )
    node = NodeEnd(await rows(lambda: lease.node.name), tmp_path)
    await node.enrol([lease])
    folder = JobFolder(tmp_path / "jobs", (lease.uid, lease.generation))
    files = folder.make(1000, 1000, collects=True)
    output, jobs = Output(files.output, 1000, 1000, 10**6, 10**6, [], 0.0), OneJob()
    shipping = OutputShipping(folder.path.parent, jobs, address_of("ws://127.0.0.1:1"), node.identity)  # type: ignore[arg-type]
    port = unused_port()
    shipping.welcomed(Welcome(node.node, 3, 5, 1, gateways=(f":{port}",)))
    task = asyncio.create_task(shipping.run())

    async def stored() -> bytes:
        return await rows(lambda: read_log(JobAttempt.objects.get(), 0)[1])

    async with serving(port):
        output.take(b"one\n", 0.0)
        async with asyncio.timeout(20):
            while await stored() != b"one\n":
                await asyncio.sleep(0.02)
    output.take(b"two\n", 0.0)
    left = {"path": "out/m", "size": 5, "at": 0, "sha256": hashlib.sha256(b"model").hexdigest()}
    (folder.path / FOUND).write_text(json.dumps(left) + '\n{"done": true, "unnamed": 0}\n')
    (folder.path / FILES).write_bytes(b"model")
    jobs.is_ended = True
    async with serving(port):
        await until(lambda: not folder.path.exists())
    task.cancel()
    files.close()

    assert await stored() == b"one\ntwo\n"
    assert await rows(lambda: b"".join(read_artifact(Artifact.objects.get()))) == b"model"
    await rows(attempt.refresh_from_db)
    assert (attempt.log_is_closed, attempt.artifacts_are_closed) == (True, True)


@pytest.mark.parametrize("told", [(), (LARGE_PIECES,)])
async def test_gateway_says_that_it_takes_large_pieces_to_agents_that_know_the_word(
    world: World, tmp_path: Path, told: tuple[str, ...]
) -> None:
    lease = await rows(lambda: world.active("bob"))
    node = NodeEnd(await rows(lambda: lease.node.name), tmp_path)
    await node.enrol([lease])
    await rows(lambda: Node.objects.update(features=["streams", *told]))
    async with serving() as port, connect(f"ws://127.0.0.1:{port}/jobs/v1/agent") as socket:
        assert (await greet(socket, node.identity, 3)).features == told


@pytest.mark.parametrize("frame", [b"", b"\x00\x02{}", b"\xff\xff", b'\x00\x0e{"op": "other"}', "text"])
async def test_frame_that_makes_no_sense_ends_the_socket(
    world: World, tmp_path: Path, frame: bytes | str
) -> None:
    lease = await rows(lambda: world.active("bob"))
    node = NodeEnd(await rows(lambda: lease.node.name), tmp_path)
    await node.enrol([lease])
    async with serving() as port, connect(f"ws://127.0.0.1:{port}/jobs/v1/agent") as socket:
        await greet(socket, node.identity, 3)
        await socket.send(frame)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == CLOSE_BAD_FRAME
