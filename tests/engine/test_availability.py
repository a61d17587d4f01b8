"""Free units hour by hour agree with what a booking of that hour would be told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from scheduler.engine.forecaster import Forecaster
from scheduler.engine.model import Outage
from tests.engine.builder import NOON, Cluster

HOUR = timedelta(hours=1)


def test_units_are_free_where_a_booking_of_that_hour_fits(cluster: Cluster) -> None:
    node = cluster.node("a", devices=2)
    node.hold(0, hours=3)
    snapshot = cluster.snapshot()
    away = Outage(snapshot.nodes[0].id, NOON + 5 * HOUR, NOON + 7 * HOUR)
    snapshot = replace(snapshot, outages=(away,))
    starts = [NOON + n * HOUR for n in range(8)]
    forecaster = Forecaster(snapshot, cluster.policy)
    claim = cluster.claim(-1)

    (free,) = forecaster.free_units([claim], starts).values()

    assert free == [1, 1, 1, 2, 2, 0, 0, 2]
    for start, units in zip(starts[1:], free[1:], strict=True):
        booking = replace(claim, starts_at=start, count=2)
        asked = Forecaster(snapshot, cluster.policy).ask([booking])[-1]
        assert (asked.starts_at == start) is (units >= 2)
