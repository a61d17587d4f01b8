"""Frames of agents, spoilt: the codec takes or refuses each, the portal's tables never break over one that it took."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from nodeagent.protocol.codec import ProtocolError, decode, encode
from nodeagent.protocol.messages import (
    DeviceSample,
    HealthFact,
    Heartbeat,
    LeaseReport,
    Message,
    NewKey,
    PartitionFact,
    Report,
    Samples,
    SlotAccess,
    SlotSample,
)
from portal.agents.admission import admit
from portal.agents.errors import AgentRefused
from portal.agents.reports import accept_report
from portal.common.clock import db_now
from portal.fleet.models import Node
from portal.leases.models import Lease, Placement
from tests.agents.test_enrolment import NONCE, Key, token
from tests.hostile import nasty
from tests.hostile.plenty import SEED, Surface
from tests.portal.builders import World

_WHOLE = st.lists(st.integers() | st.text(max_size=5), max_size=3)
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=40),
    _WHOLE,
    st.dictionaries(st.text(max_size=5), _WHOLE, max_size=3),
)


def sound_frames(lease: Lease) -> list[dict[str, Any]]:
    """Return a frame of each kind that an agent sends, with every field filled."""
    slot = Placement.objects.select_related("device").get(lease=lease)
    device, uuid = slot.device.uuid, slot.partition_uuid or "MIG-1"
    access = SlotAccess(device, slot.start, uuid, {"CUDA_VISIBLE_DEVICES": uuid}, ("/dev/nvidia0",))
    report = Report(
        1, "boot-1", 1, 1,
        (LeaseReport(lease.uid, lease.generation, "ready", access=(access,), active_ms=1, code="x", detail="y"),),
        (PartitionFact(uuid, device, "1g.10gb", slot.start, 1, lease.uid),),
        health=(HealthFact(device, "79", "critical", "off the bus", "reboot_node"),),
    )  # fmt: skip
    samples = Samples(
        1, "boot-1", 1, (DeviceSample(device, 5.0, 100, 300.0, 60.0, 1, "nvml"),),
        (SlotSample(lease.uid, device, slot.start, 5.0, 100, 9000, "gpm"),),
    )  # fmt: skip
    hello = Key().hello("gpu-01", token="enr_x")
    messages: list[Message] = [
        report,
        samples,
        hello,
        Heartbeat(1, "boot-1", 1),
        NewKey("ab" * 32, "cd" * 64),
    ]
    return [json.loads(encode(message)) for message in messages]


@pytest.mark.deep
def test_every_frame_is_taken_or_refused_and_the_tables_hold(world: World) -> None:
    lease = world.active()
    kinds = sound_frames(lease)
    node, key = world.nodes["gpu-01"], Key()
    admit(key.hello("gpu-01", token=token(world, "gpu-01")), nonce=NONCE, now=world.now)

    with Surface("agent frames", 0.58) as surface:

        @seed(SEED)
        @settings(
            max_examples=surface.count, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(st.integers(0, 1 << 32), _VALUES)
        def throw(number: int, value: Any) -> None:
            text = _spoilt(kinds, random.Random(number), value)
            answer, error = _answer(text, node)
            surface.note(answer, text, is_wrong=error is not None, told=error)

        throw()
        # Hypothesis stops early when it has seen everything that it can think of; the rest is drawn at random.
        while surface.answers.total() < surface.count:
            text = _spoilt(kinds, surface.rng, nasty.value(surface.rng))
            answer, error = _answer(text, node)
            surface.note(answer, text, is_wrong=error is not None, told=error)


def _spoilt(kinds: list[dict[str, Any]], rng: random.Random, value: Any) -> str:
    """Return a frame with places spoilt, the value put somewhere, or a letter changed; most still say what they are."""
    kind = kinds[0] if rng.random() < 0.5 else rng.choice(kinds)
    how = rng.random()
    if how < 0.6:
        body = nasty.spoilt(kind, rng)
    else:
        body = copy.deepcopy(kind)
        holder, key = rng.choice(list(nasty.places(body)))
        holder[key] = value
    if isinstance(body, dict) and rng.random() < 0.9:
        body |= {"v": kind["v"], "type": kind["type"]}
    text = json.dumps(body)
    if how > 0.95:
        at = rng.randrange(len(text))
        text = text[:at] + chr(rng.randrange(0x20, 0x2000)) + text[at + 1 :]
    return text


def _answer(text: str, node: Node) -> tuple[str, Exception | None]:
    """Return what became of one frame, and the error where it was neither taken nor refused."""
    try:
        message = decode(text)
    except ProtocolError as error:
        return error.code, None
    except Exception as error:
        return "broken codec", error
    try:
        with transaction.atomic():
            if isinstance(message, Report):
                epoch = Node.objects.values_list("epoch", flat=True).get(pk=node.pk)
                accept_report(node.pk, _of(message, epoch))
            elif type(message).__name__ == "Hello":
                admit(message, nonce=NONCE, now=db_now())  # type: ignore[arg-type]
            transaction.set_rollback(True)
    except AgentRefused as error:
        return error.code, None
    except Exception as error:
        return "broken tables", error
    return "taken", None


def _of(report: Report, epoch: int) -> Report:
    """Let most reports pass the door, which is tried elsewhere: what they say is what matters here."""
    return replace(report, epoch=epoch, seq=report.seq + 10, revision=min(report.revision, 1 << 40))
