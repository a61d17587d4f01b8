"""A sweep looks at a bounded number of leases, and still reaches all of them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from portal.common.invariants import broken
from portal.leases import maintenance
from portal.leases.maintenance import cancel_window, heed_windows, plan_window
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def test_leases_that_end_in_time_do_not_keep_others_from_being_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "MOST", 1)
    leases = [world.active("bob", "h100", duration_s=7200) for _ in range(3)]
    nodes = {lease.node for lease in leases}
    window = plan_window(
        nodes=list(nodes), starts_at=world.now + HOUR, ends_at=world.now + 2 * HOUR, reason="fans",
        actor=world.user("operator"), now=world.now,
    )  # fmt: skip

    changed = [heed_windows(now=world.now) for _ in range(3)]

    assert changed == [1, 1, 0]
    for lease in leases:
        lease.refresh_from_db()
        assert (lease.not_after, lease.cut_by) == (world.now + HOUR, "maintenance")
    cancel_window(window=window, actor=world.user("operator"), now=world.now)
    assert [heed_windows(now=world.now) for _ in range(3)] == [1, 1, 0]
    for lease in leases:
        lease.refresh_from_db()
        assert (lease.not_after, lease.wanted_until) == (world.now + 2 * HOUR, None)
    assert broken() == []
