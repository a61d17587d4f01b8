"""Random lives of leases and bookings through the services: nothing ever overlaps, every promise holds."""

from __future__ import annotations

import contextlib
import random
from datetime import timedelta

import pytest
from django.db import connection

from portal.api.accounting import OVERLAPS_SQL
from portal.common.errors import Conflict
from portal.common.invariants import broken
from portal.fleet.maintenance import windows_to_come
from portal.leases import bookings, lifecycle
from portal.leases.extending import extend_lease
from portal.leases.maintenance import cancel_window, heed_windows, plan_window
from portal.leases.models import Lease, LeaseRequest, Placement
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
STEP = timedelta(minutes=10)
FLAVORS = ("h100", "h100-1g-10gb", "h100-3g-40gb", "l40s-quarter")


class Walk:
    """One random walk: somebody asks, books, extends or gives up; time goes on; agents mostly answer."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.now, self.dice = world, world.now, random.Random(seed)

    def step(self) -> None:
        self.pass_time()
        for act in self.dice.sample(
            [self.ask, self.ask, self.book, self.book, self.extend, self.give_up, self.maintain], 3
        ):
            act()
        self.tick()
        self.agents()

    def pass_time(self) -> None:
        self.now += STEP
        for node in self.world.nodes.values():
            node.last_seen_at = self.now
            node.save(update_fields=["last_seen_at"])

    def ask(self) -> None:
        self._submit(None)

    def book(self) -> None:
        self._submit(self.now + self.dice.randint(1, 36) * STEP)

    def _submit(self, starts_at: object) -> None:
        name, flavor = self.dice.choice(("bob", "charlie", "alice")), self.dice.choice(FLAVORS)
        duration_s = self.dice.randint(2, 30) * 600
        least = 600 if self.dice.random() < 0.3 else 0
        self.world.submit(
            name, flavor, duration_s=duration_s, at=self.now, starts_at=starts_at, least_duration_s=least
        )

    def extend(self) -> None:
        lease = self._any("active")
        if lease:
            more = {"lease": lease, "actor": lease.user, "extra_s": self.dice.randint(1, 12) * 600}
            with contextlib.suppress(Conflict):  # something comes behind it
                extend_lease(**more, now=self.now)

    def give_up(self) -> None:
        lease = self._any("active", "booked", "preparing")
        if lease:
            lifecycle.release_lease(lease=lease, actor=lease.user, now=self.now)

    def maintain(self) -> None:
        windows = list(windows_to_come(now=self.now))
        operator = self.world.user("operator")
        if windows:
            cancel_window(window=windows[0], actor=operator, now=self.now)
            return
        begin = self.now + self.dice.randint(0, 12) * STEP
        node = self.world.nodes[self.dice.choice(("gpu-01", "gpu-03"))]
        plan_window(
            nodes=[node],
            starts_at=begin,
            ends_at=begin + 6 * STEP,
            reason="fans",
            actor=operator,
            now=self.now,
        )

    def tick(self) -> None:
        heed_windows(now=self.now)
        lifecycle.expire_due(now=self.now)
        bookings.start_booked(now=self.now)
        lifecycle.prolong_holds(now=self.now)
        self.world.turn(at=self.now)

    def agents(self) -> None:
        """Most slices are made and cleaned within the step; some take longer."""
        for lease in Lease.objects.filter(state="preparing"):
            if self.dice.random() < 0.9:
                self.world.ready(lease, at=self.now + timedelta(seconds=20))
        for lease in Lease.objects.filter(state__in=("ending", "cleaning")):
            if self.dice.random() < 0.8:
                self.world.gone(lease, at=self.now + timedelta(seconds=30))

    def _any(self, *states: str) -> Lease | None:
        found = list(Lease.objects.filter(state__in=states).select_related("user", "team").order_by("id"))
        return self.dice.choice(found) if found else None


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
def test_nothing_overlaps_and_every_promise_holds_on_a_random_walk(world: World, seed: int) -> None:
    walk = Walk(world, seed)

    for _n in range(36):
        walk.step()
    walk.pass_time()
    walk.tick()

    assert broken() == []
    with connection.cursor() as cursor:
        cursor.execute(OVERLAPS_SQL)
        assert cursor.fetchone() == (0, 0)
    assert Placement.objects.count() > 20
    assert Lease.objects.filter(request__starts_at__isnull=False, activated_at__isnull=False).exists()
    waiting = LeaseRequest.objects.filter(state="queued")
    assert [r.uid for r in waiting if not r.reasons and not r.starts_at] == []


def test_of_two_bookings_for_the_last_board_one_wins_and_the_other_hears_what_is_free(world: World) -> None:
    world.nodes["gpu-01"].devices.filter(index__gt=0).update(health="quarantined")
    begin = world.now + 6 * STEP
    first = world.submit("bob", "h100", starts_at=begin)
    second = world.submit("charlie", "h100", starts_at=begin)

    world.turn()

    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state) == ("granted", "impossible")
    assert second.reasons[0]["code"] == "booking_taken"
    news = world.user("charlie").notifications.get(kind="booking.taken")
    assert news.facts["nearest"] == second.reasons[0]["nearest"]
    assert news.facts["nearest"]
