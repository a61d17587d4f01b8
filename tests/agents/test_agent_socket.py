"""The socket agents dial, from challenge to close; whatever is thrown at it, nothing changes and nothing dies."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.protocol import failpoints
from nodeagent.protocol.cluster_usage import ClusterUsage
from nodeagent.protocol.codec import encode
from nodeagent.protocol.messages import Heartbeat, ImageFact, LeaseReport, NodeImages, Report, Samples
from portal.agents import admission, consumers
from portal.agents.handshake import Handshake, UnprovenSockets
from portal.agents.services import create_enrol_token
from portal.cluster_usage.models import ClusterBooks
from portal.fleet.models import Device, Node, NodeImage
from portal.leases.models import Lease
from tests.agents.test_enrolment import Key
from tests.portal.builders import World
from tests.telemetry.conftest import live, rows  # noqa: F401
from tests.telemetry.talk import Talk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]

JUNK: list[Any] = [
    "",
    "null",
    "[]",
    "{",
    "\x00",
    b"\xff\xfe",
    '{"v":1}',
    '{"v":2,"type":"hello"}',
    '{"v":true,"type":"hello"}',
    '{"v":1,"type":"nonsense"}',
    '{"v":1,"type":"welcome","node":"x","epoch":1,"heartbeat_s":1,"sample_s":1}',
    '{"v":1,"type":"heartbeat","epoch":1e400,"boot_id":"b","revision":1}',
    '{"v":1,"type":"heartbeat","epoch":1,"boot_id":"b","revision":1,"more":1}',
    '{"v":1,"v":1,"type":"heartbeat"}',
    "[" * 50_000,
    '{"v":1,"type":"hello","node":"' + "x" * 300 + '"}',
]


class Agent:
    """An agent's end of the line."""

    def __init__(self, talk: Talk, key: Key) -> None:
        self.talk, self.key = talk, key

    async def enrol(self, world: World, node: str = "gpu-09") -> dict[str, Any]:
        secret = (await rows(lambda: create_enrol_token(node_name=node, actor=None, now=world.now))).secret
        return await self.introduce(node, secret)

    async def introduce(self, node: str = "gpu-09", secret: str = "") -> dict[str, Any]:
        challenge = await self.talk.hear()
        await self.talk.say(encode(self.key.hello(node, challenge["nonce"], secret)))
        return await self.talk.hear()


async def test_an_agent_is_welcomed_and_gets_the_nodes_desired_state(world: World) -> None:
    async with Talk("/agent/v1") as talk:
        welcome = await Agent(talk, Key()).enrol(world)
        desired = await talk.hear()

    assert (welcome["type"], welcome["epoch"]) == ("welcome", 1)
    assert (desired["type"], desired["node"], desired["revision"]) == ("desired", "gpu-09", 0)


async def test_an_agent_that_could_not_be_told_what_is_wanted_loses_its_line_and_is_told_on_the_next(
    world: World, tmp_path: Path
) -> None:
    key = Key()
    (tmp_path / "desired.before_send").write_text("raise")
    failpoints.arm(tmp_path)
    try:
        async with Talk("/agent/v1") as talk:
            await Agent(talk, key).enrol(world)
            ended = await talk.hear()
    finally:
        failpoints.arm(None)
    async with Talk("/agent/v1") as talk:
        await Agent(talk, key).introduce()
        told = await talk.hear()

    assert (ended["type"], ended["code"], told["type"]) == ("refused", "internal", "desired")


@pytest.mark.parametrize(
    ("named", "shared"), [((), None), (("rotate",), None), (("new", "health_slices"), ["health_slices"])]
)
async def test_only_an_agent_that_names_a_shared_feature_is_welcomed_with_it(
    world: World, named: tuple[str, ...], shared: list[str] | None
) -> None:
    secret = (await rows(lambda: create_enrol_token(node_name="gpu-09", actor=None, now=world.now))).secret
    async with Talk("/agent/v1") as talk:
        challenge = await talk.hear()
        await talk.say(encode(replace(Key().hello("gpu-09", challenge["nonce"], secret), features=named)))
        welcome = await talk.hear()

    assert welcome.get("features") == shared, "an older agent refuses a field that it does not know"


@pytest.mark.parametrize("frame", JUNK, ids=range(len(JUNK)))
async def test_junk_is_answered_and_closes_this_line_only(world: World, frame: Any) -> None:
    async with Talk("/agent/v1") as talk:
        assert (await talk.hear())["type"] == "challenge"
        await talk.say(frame)
        answer = await talk.hear()
        assert answer["type"] == "refused"
        assert answer["detail"]
        assert await talk.ended() in (4400, 4401)

    async with Talk("/agent/v1") as another:
        assert (await another.hear())["type"] == "challenge"


async def test_whoever_does_not_introduce_itself_is_not_heard(world: World) -> None:
    async with Talk("/agent/v1") as talk:
        await talk.hear()
        await talk.say(encode(Heartbeat(epoch=1, boot_id="boot-1", revision=0)))

        assert (await talk.hear())["code"] == "not_introduced"
        assert await talk.ended() == 4401


async def test_a_wrong_key_is_told_what_to_do(world: World) -> None:
    async with Talk("/agent/v1") as talk:
        await Agent(talk, Key()).enrol(world)
    async with Talk("/agent/v1") as talk:
        answer = await Agent(talk, Key()).introduce()

        assert (answer["type"], answer["code"]) == ("refused", "bad_signature")
        assert "enrolment token" in answer["detail"]


async def test_the_newer_of_two_lines_of_one_node_stays(world: World) -> None:
    key = Key()
    async with Talk("/agent/v1") as first:
        await Agent(first, key).enrol(world)
        async with Talk("/agent/v1") as second:
            assert (await Agent(second, key).introduce())["type"] == "welcome"
            assert await first.ended() == 4409


async def test_a_report_of_another_epoch_changes_nothing(world: World) -> None:
    lease = await rows(lambda: world.active())
    async with Talk("/agent/v1") as talk:
        await Agent(talk, Key()).enrol(world, "gpu-01")
        gone = LeaseReport(lease.uid, lease.generation, "gone")
        await talk.hear()
        await talk.say(encode(Report(1, "boot-1", 1, 99, (gone,), ())))

        assert (await talk.hear())["code"] == "stale_epoch"
    assert (await rows(lambda: Lease.objects.get(pk=lease.pk).state)) == "active"


async def test_a_report_is_acknowledged_and_a_lease_that_ended_is_forgotten(world: World) -> None:
    lease = await rows(lambda: world.active())
    async with Talk("/agent/v1") as talk:
        await Agent(talk, Key()).enrol(world, "gpu-01")
        await talk.hear()
        ready = LeaseReport(lease.uid, lease.generation, "ready")
        report = Report(2, "boot-1", 5, 1, (ready,), ())
        await talk.say(encode(report))
        assert await talk.hear() == {"v": 1, "type": "ack", "seq": 5}
        await talk.say(encode(replace(report, seq=6, revision=10**6)))
        assert (await talk.hear())["seq"] == 6

    node = await rows(lambda: Node.objects.get(name="gpu-01"))
    assert node.observed_revision <= node.desired_revision
    assert json.dumps(node.last_seq) == "6"


async def test_a_first_frame_that_is_larger_than_any_hello_is_not_even_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    monkeypatch.setattr(consumers, "decode", lambda frame: read.append(len(frame)))
    async with Talk("/agent/v1") as talk:
        await talk.hear()
        await talk.say('{"v":1,"type":"hello","node":"' + "x" * 4_000_000 + '"}')

        assert (await talk.hear())["code"] == "too_large"
        assert await talk.ended() == 4400
    assert read == []


async def test_an_address_has_only_so_many_sockets_that_have_not_said_who_they_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "_waiting", UnprovenSockets(most=2))
    async with Talk("/agent/v1") as one, Talk("/agent/v1") as two:
        await two.hear()
        async with Talk("/agent/v1") as third:
            assert (third.accepted, third.code) == (False, 4503)

        assert (await Agent(one, Key()).enrol(world))["type"] == "welcome"
        async with Talk("/agent/v1") as another:
            assert (await another.hear())["type"] == "challenge"


async def test_a_hello_that_is_stored_too_slowly_is_refused_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(hello: Any, *, handshake: Handshake, **more: Any) -> Any:
        assert handshake.end(), "as the timer does when the time is over"
        return admission.admit(hello, handshake=handshake, **more)

    monkeypatch.setattr(consumers, "admit", slowly)
    async with Talk("/agent/v1") as talk:
        answer = await Agent(talk, Key()).enrol(world)

    assert (answer["type"], answer["code"]) == ("refused", "too_late")
    assert await rows(lambda: Device.objects.filter(node__name="gpu-09").count()) == 0


async def test_a_node_is_online_once_its_agent_speaks_after_the_welcome(world: World) -> None:
    async with Talk("/agent/v1") as talk:
        await Agent(talk, Key()).enrol(world)
        await talk.hear()
        welcomed = await rows(lambda: Node.objects.get(name="gpu-09").last_seen_at)
        await talk.say(encode(Heartbeat(epoch=1, boot_id="boot-1", revision=0)))
        await talk.say(encode(NodeImages(1, (ImageFact("oci:a:1", "", 7, ""),), 7, 9)))
        await talk.say(encode(ClusterUsage(1, int(time.time()), "off", "no accounting", ())))
        await talk.say(encode(Report(1, "boot-1", 1, 0, (), ())))
        await talk.hear()

    assert welcomed is None
    assert await rows(lambda: list(NodeImage.objects.values_list("node__name", "name"))) == [
        ("gpu-09", "oci:a:1")
    ]
    assert await rows(lambda: list(ClusterBooks.objects.values_list("node__name", "state", "why"))) == [
        ("gpu-09", "off", "no accounting")
    ]
    assert await rows(lambda: Node.objects.get(name="gpu-09").last_seen_at) is not None


async def test_frames_of_another_epoch_are_refused_at_the_door(world: World) -> None:
    for frame in (
        Heartbeat(9, "boot-1", 1),
        Samples(9, "boot-1", 1, (), ()),
        Report(9, "boot-1", 1, 0, (), ()),
        NodeImages(9, (), 0, None),
        ClusterUsage(9, 7, "on", "", ()),
    ):
        async with Talk("/agent/v1") as talk:
            await Agent(talk, Key()).enrol(world, "gpu-01")
            await talk.hear()
            await talk.say(encode(frame))

            assert (await talk.hear())["code"] == "stale_epoch"
            assert await talk.ended() == 4401
