"""What browsers and agents may send over their sockets: answered or closed with a word, never by a fault of ours."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from nodeagent.protocol.codec import encode
from portal.agents.services import create_enrol_token
from portal.fleet.models import Node
from portal.leases.models import Lease
from tests.agents.test_enrolment import Key
from tests.hostile import nasty
from tests.hostile.plenty import Surface
from tests.hostile.test_frames import sound_frames
from tests.portal.builders import World
from tests.telemetry.conftest import rows
from tests.telemetry.talk import Talk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]
A_SOCKET = 15  # messages; more within a second are too many
OURS = {1011, 4503}
TOPICS = ("me", "fleet", "node:gpu-01", "lease:lse-0000000000000000")


def _message(rng: Any) -> Any:
    kind = rng.random()
    if kind < 0.1:
        return nasty.text(rng)
    if kind < 0.2:
        return json.dumps(nasty.value(rng))
    topics = [
        rng.choice(TOPICS) if rng.random() < 0.3 else nasty.value(rng) for _ in range(rng.choice((1, 1, 3)))
    ]
    sound = {"op": rng.choice(("subscribe", "unsubscribe", "ping")), "topics": topics}
    return json.dumps(sound if kind < 0.6 else nasty.spoilt(sound, rng))


async def test_no_message_of_a_browser_ends_in_a_fault(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = [await rows(lambda name=name: world.token(name)) for name in ("bob", "charlie", "operator")]
    await rows(world.active)

    with Surface("browser sockets", 0.05) as surface:
        rng, thrown = surface.rng, 0
        while thrown < surface.count:
            sent: list[Any] = []
            async with Talk(token=rng.choice(tokens)) as talk:
                for _ in range(A_SOCKET):
                    sent.append(_message(rng))
                    thrown += 1
                    await talk.say(sent[-1])
                await talk.say({"op": "ping"})
                said = await _until_pong(talk)
            for one in sent:
                surface.note(said, one, is_wrong=said in OURS)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


async def _until_pong(talk: Talk) -> int | str:
    """Return the close code, or "heard" when the socket still answers after all that was said."""
    while True:
        message = await talk._next()
        if message["type"] == "websocket.close":
            return int(message["code"])
        if json.loads(message["text"]).get("type") == "pong":
            return "heard"


async def test_no_frame_of_an_agent_ends_in_a_fault(world: World, caplog: pytest.LogCaptureFixture) -> None:
    lease: Lease = await rows(world.active)
    kinds = await rows(lambda: sound_frames(lease))
    key = Key()
    secret = (await rows(lambda: create_enrol_token(node_name="gpu-01", actor=None, now=world.now))).secret

    with Surface("agent sockets", 0.02) as surface:
        rng = surface.rng
        for number in range(surface.count):
            async with Talk("/agent/v1") as talk:
                challenge = await talk.hear()
                frame = nasty.spoilt(rng.choice(kinds), rng)
                if number == 0 or rng.random() < 0.6:
                    await talk.say(
                        encode(key.hello("gpu-01", challenge["nonce"], secret if number == 0 else ""))
                    )
                    welcome = await talk.hear()
                    assert welcome["type"] == "welcome", welcome
                    if isinstance(frame, dict) and rng.random() < 0.7:
                        frame["epoch"] = welcome["epoch"]
                await talk.say(
                    json.dumps(frame) if rng.random() < 0.95 else nasty.text(rng).encode("utf-8", "replace")
                )
                # To a good one there may be nothing to say: then comes a word that is refused.
                await talk.say("{}")
                said = await talk.ended()
            surface.note(said, frame, is_wrong=said in OURS)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert await rows(lambda: Node.objects.get(name="gpu-01").devices.count()) >= 8
