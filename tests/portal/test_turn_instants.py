from __future__ import annotations

import pytest

from portal.common.clock import db_now
from portal.leases.lifecycle import release_lease
from portal.leases.models import Lease, Placement
from scheduler import cycle, snapshot
from scheduler.engine.model import Snapshot
from tests.portal.builders import World


def test_a_slice_given_back_while_a_turn_looks_begins_anew_after_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.active("bob", "h100", count=8)
    release_lease(lease=first, actor=world.user("bob"), now=db_now())
    request = world.submit("bob", "h100", count=8)
    look = snapshot.take

    def given_back_meanwhile(**given: object) -> Snapshot:
        world.gone(first, at=db_now())
        return look(**given)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "take", given_back_meanwhile)
    turn = cycle.run()

    second = Lease.objects.get(request=request)
    ends = [slot.period.upper for slot in Placement.objects.filter(lease=first)]
    begins = [slot.period.lower for slot in Placement.objects.filter(lease=second)]
    assert turn.granted == 1
    assert max(ends) <= min(begins)
