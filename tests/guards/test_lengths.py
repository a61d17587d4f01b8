"""Names that the wire lets through fit where they are kept, or are refused by their field: never a fault of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import transaction

from nodeagent.protocol.codec import ProtocolError, decode
from nodeagent.protocol.messages import Report
from portal.agents.errors import AgentRefused
from portal.agents.reports import accept_report
from portal.leases.models import Lease
from tests.hostile.nasty import places
from tests.hostile.test_frames import sound_frames
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
LENGTHS = (25, 31, 33, 41, 61, 64, 65, 81, 128, 201, 257, 301)


@pytest.mark.deep
def test_a_report_with_any_text_of_any_length_is_taken_or_refused(world: World) -> None:
    lease: Lease = world.active()
    report = sound_frames(lease)[0]
    texts = [n for n, (holder, key) in enumerate(places(report)) if isinstance(holder[key], str)]
    broken: list[Any] = []

    for number in texts:
        for length in LENGTHS:
            spoilt = json.loads(json.dumps(report))
            holder, key = list(places(spoilt))[number]
            holder[key] = "x" * length
            try:
                message = decode(json.dumps(spoilt))
                assert isinstance(message, Report)
                with transaction.atomic():
                    accept_report(lease.node_id, message)
                    transaction.set_rollback(True)
            except (ProtocolError, AgentRefused):
                continue
            except Exception as error:
                broken.append((key, length, str(error)[:60]))

    assert broken == []
