from __future__ import annotations

import pytest

from portal.telemetry.consumers import MessageBucket
from portal.telemetry.hub import switchboard
from tests.portal.builders import World
from tests.telemetry.conftest import rows
from tests.telemetry.talk import Talk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]

JUNK = [
    "",
    " ",
    "null",
    "[]",
    "7",
    '"subscribe"',
    "{",
    '{"op":}',
    "\x00",
    '{"op": "drop"}',
    '{"op": null}',
    '{"op": ["subscribe"]}',
    '{"op": {"op": "subscribe"}}',
    '{"op": "subscribe"}',
    '{"op": "subscribe", "topics": null}',
    '{"op": "subscribe", "topics": "me"}',
    '{"op": "subscribe", "topics": {"me": 1}}',
    '{"op": "subscribe", "topics": [1]}',
    '{"op": "subscribe", "topics": [["me"]]}',
    '{"op": "unsubscribe", "topics": [null]}',
    '{"op": "subscribe", "topics": [' + ",".join(['"me"'] * 300) + "]}",
    '{"n": 1e999999, "m": NaN}',
    '{"n": ' + "9" * 5000 + "}",
    "[" * 30_000,
    '{"a":' * 10_000 + "1" + "}" * 10_000,
]
STRANGE_TOPICS = [
    "", "ME", "me ", "lease:", "lease:*", "lease:%", "lease:" + "a" * 40, "lease:lse-1' or 1=1", "node:",
    "node:../..", "node:" + "n" * 100, "team:vision", "lease:\x00", "lease:\ud800", "ｆleet", "fleet:gpu-01",
    "x" * 5000,
]  # fmt: skip


async def test_junk_is_answered_and_the_socket_goes_on(world: World) -> None:
    token = await rows(lambda: world.token("bob"))
    answers = []

    for start in range(0, len(JUNK), 15):
        async with Talk(token=token) as bob:
            for text in JUNK[start : start + 15]:
                await bob.say(text)
                answers.append(await bob.hear())
            assert await bob.is_quiet()

    assert [answer["code"] for answer in answers] == ["bad_message"] * len(JUNK)


async def test_a_strange_topic_is_an_unknown_topic(world: World) -> None:
    async with Talk(token=await rows(lambda: world.token("operator"))) as operator:
        answers = await operator.subscribe(*STRANGE_TOPICS)
        assert await operator.is_quiet()

    assert {answer["code"] for answer in answers} == {"unknown_topic"}
    assert max(len(answer["topic"]) for answer in answers if "topic" in answer) <= 80
    assert switchboard().topics == {}


async def test_binary_is_refused_as_such(world: World) -> None:
    async with Talk(token=await rows(lambda: world.token("bob"))) as bob:
        await bob.say(b'{"op": "ping"}')

        assert await bob.ended() == 1003


async def test_a_message_beyond_64_kib_is_refused_as_such(world: World) -> None:
    token = await rows(lambda: world.token("bob"))

    for text in ("x" * 65_537, "é" * 40_000, "[" + "1," * 3_000_000 + "1]"):
        async with Talk(token=token) as bob:
            await bob.say(text)

            assert await bob.ended() == 1009


async def test_ten_thousand_messages_end_the_socket_and_leave_the_others_alone(world: World) -> None:
    token = await rows(lambda: world.token("bob"))

    async with Talk(token=token) as flood, Talk(token=token) as calm:
        for _ in range(10_000):
            await flood.say({"op": "ping"})
        code = await flood.ended()
        still = await calm.is_quiet()

    assert code == 4429
    assert still


async def test_at_most_64_topics_are_watched_on_one_socket(world: World) -> None:
    async with Talk(token=await rows(lambda: world.token("operator"))) as operator:
        lease = await rows(world.active)
        await operator.subscribe("fleet", "node:gpu-01", "node:gpu-03", f"lease:{lease.uid}")
        (seat,) = switchboard().seats
        for i in range(60):
            switchboard()._watch(seat, f"node:more-{i}", seat.topics["fleet"])
        more = await rows(lambda: world.active("charlie"))
        (refused,) = await operator.subscribe(f"lease:{more.uid}")
        (again,) = await operator.subscribe("fleet")

    assert refused["code"] == "too_many_topics"
    assert again["type"] == "snapshot"


async def test_a_socket_at_an_unknown_address_is_closed_cleanly() -> None:
    for path in ("/ws/", "/ws/live/x", "/ws/live", "/", "/agent/v2", "/%00", "/ws/live/\ud7ff"):
        async with Talk(path) as lost:
            assert await lost.ended() == 4404, path


def test_the_pace_lets_a_burst_through_and_then_twenty_a_second() -> None:
    pace = MessageBucket(20)

    burst = [pace.allows(100.0) for _ in range(21)]
    later = [pace.allows(100.5) for _ in range(11)]

    assert burst == [True] * 20 + [False]
    assert later == [True] * 10 + [False]
