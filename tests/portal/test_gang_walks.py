"""Random lives of gangs, elastic and plain leases: every promise holds after every step, and all ends clean."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pytest
from django.db import transaction

from portal.common.invariants import broken
from portal.fleet.models import Node
from portal.leases import lifecycle, transitions
from portal.leases.models import Lease, LeaseRequest
from portal.leases.preempting import preempt_due
from portal.quotas.models import Quota
from tests.portal.builders import H100, World, make_node

pytestmark = pytest.mark.django_db
ASKED = (
    {"nodes": 2, "count": 2},
    {"nodes": 2, "count": 4, "is_preemptible": True},
    {"nodes": 0, "count": 9},
    {"count": 1, "most_count": 5},
    {"count": 3},
    {"count": 8},
)
STATES = ("preparing", "active", "interrupted", "ending", "cleaning")


class Walk:
    """Chooses what happens next; time goes on with every step."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.now = world, world.now
        self.dice = random.Random(seed)

    def some(self, *states: str) -> list[Lease]:
        """Return a random few of the leases in these states."""
        found = list(Lease.objects.filter(state__in=states).order_by("id"))
        return self.dice.sample(found, min(len(found), self.dice.randint(1, 3)))

    def step(self) -> None:
        """Let one thing happen."""
        self.now += timedelta(seconds=self.dice.choice((5, 60, 400)))
        Node.objects.update(last_seen_at=self.now)
        happens = (
            self.ask,
            self.ask,
            self.ask,
            self.turn,
            self.turn,
            self.ready,
            self.ready,
            self.release,
            self.fail,
            self.sweep,
            self.clean,
            self.clean,
        )
        self.dice.choice(happens)()
        lifecycle.end_left_behind(now=self.now)

    def ask(self) -> None:
        if LeaseRequest.objects.filter(state="queued").count() < 4:
            who = self.dice.choice(("alice", "charlie"))
            self.world.submit(
                who, "h100", duration_s=self.dice.choice((600, 3600)), at=self.now, **self.dice.choice(ASKED)
            )

    def turn(self) -> None:
        self.world.turn(at=self.now)

    def ready(self) -> None:
        self.world.ready(*self.some("preparing"), at=self.now)

    def release(self) -> None:
        for lease in self.some("active", "preparing")[:1]:
            lifecycle.release_lease(lease=lease, actor=None, now=self.now)

    @transaction.atomic
    def fail(self) -> None:
        lifecycle.fail_leases(
            transitions.lock_leases([ls.pk for ls in self.some("active")[:1]]), at=self.now, fault="lost"
        )

    def sweep(self) -> None:
        lifecycle.expire_due(now=self.now)
        preempt_due(now=self.now)

    def clean(self) -> None:
        self.world.gone(*self.some("ending", "cleaning"), at=self.now)

    def finish(self) -> datetime:
        """Release and clean everything, and withdraw what waits."""
        LeaseRequest.objects.filter(state="queued").update(state="withdrawn")
        for lease in Lease.objects.filter(state__in=STATES[:3]).order_by("id"):
            lifecycle.release_lease(lease=lease, actor=None, now=self.now)
        self.world.gone(*Lease.objects.filter(state__in=STATES[3:]), at=self.now)
        return self.now


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_gangs_live_whole_and_nothing_is_left_over(world: World, seed: int) -> None:
    make_node("gpu-02", H100, 8, ("exclusive", "mig"), now=world.now)
    Quota.objects.exclude(ceiling_milli=None).update(ceiling_milli=14_000, guaranteed_milli=0)
    walk = Walk(world, seed)

    for number in range(80):
        walk.step()
        assert broken() == [], (seed, number)
    walk.finish()

    assert broken() == []
    assert not Lease.objects.exclude(state="ended").exists()
    assert not any(Quota.objects.values_list("used_milli", flat=True))
