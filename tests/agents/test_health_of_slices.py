"""A fault on one MIG slice is news for who holds that slice, and for nobody else on the card."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.messages import HealthFact, Report
from portal.agents.reports import accept_report
from portal.fleet.health import see_health
from portal.fleet.models import Device, HealthEvent, Node
from portal.leases.health_notices import tell_of_health
from portal.leases.models import Lease, Placement
from portal.notifications.models import Notification
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


class Board:
    """A card cut into slices, each held by somebody, and the agent that speaks of it."""

    def __init__(self, world: World, *names: str) -> None:
        self.world, self.now, self.seq = world, world.now, 0
        self.leases = {name: world.active(name) for name in names}
        held = Placement.objects.select_related("device").filter(lease__in=self.leases.values())
        (self.device,) = {place.device for place in held}
        self.start_of = {name: held.get(lease=lease).start for name, lease in self.leases.items()}

    def fact(
        self, *names: str, code: str = "94", detail: str = "once", severity: str = "warning"
    ) -> HealthFact:
        starts = tuple(self.start_of[name] for name in names) or None
        return HealthFact(self.device.uuid, code, severity, detail, "restart_workload", starts)

    def say(self, *facts: HealthFact) -> None:
        """Report as an agent does, over the wire."""
        self.seq += 1
        revision = Node.objects.get(pk=self.device.node_id).desired_revision
        report = decode(encode(Report(1, "boot-1", self.seq, revision, (), (), health=facts)))
        assert isinstance(report, Report)
        assert accept_report(self.device.node_id, report)

    def later(self, by: timedelta, *facts: HealthFact) -> None:
        """Report at another time."""
        self.now += by
        tell_of_health(see_health(self.device.node, facts, now=self.now), now=self.now)

    def told(self) -> list[str]:
        """Return who has unread news of a device, and forget that."""
        news = Notification.objects.filter(kind="lease.health", read_at=None)
        names = sorted(row.user.username for row in news.select_related("user"))
        news.update(read_at=self.now)
        return names


@pytest.fixture
def board(world: World) -> Board:
    return Board(world, "alice", "bob", "charlie")


def test_a_fault_on_one_slice_is_told_to_its_holder_alone(board: Board) -> None:
    board.say(board.fact("bob"))

    assert board.told() == ["bob"]
    assert HealthEvent.objects.get().starts == [board.start_of["bob"]]


def test_a_fault_whose_place_nobody_knows_is_told_to_everybody_on_the_card(board: Board) -> None:
    board.say(board.fact())

    assert board.told() == ["alice", "bob", "charlie"]
    assert HealthEvent.objects.get().starts is None


def test_what_takes_the_card_out_of_work_concerns_everybody_whatever_slice_is_named(board: Board) -> None:
    board.say(board.fact("bob", code="79", severity="critical"))

    assert board.told() == ["alice", "bob", "charlie"]
    assert HealthEvent.objects.get().starts is None


def test_a_fault_that_becomes_critical_is_told_to_all_and_anew_to_the_first(board: Board) -> None:
    board.say(board.fact("bob"))
    first = board.told()

    board.say(board.fact("bob", severity="critical"))

    assert first == ["bob"]
    assert board.told() == ["alice", "bob", "charlie"]


def test_the_same_fault_on_another_slice_is_told_to_its_holder_and_not_again_to_the_first(
    board: Board,
) -> None:
    board.say(board.fact("bob"))
    first = board.told()

    board.say(board.fact("bob", "alice", detail="twice"))

    assert (first, board.told()) == (["bob"], ["alice"])
    assert HealthEvent.objects.get().starts == sorted(board.start_of[name] for name in ("alice", "bob"))


def test_a_fault_whose_place_is_lost_later_reaches_those_who_were_not_told(board: Board) -> None:
    board.say(board.fact("bob"))
    first = board.told()

    board.say(board.fact())

    assert (first, board.told()) == (["bob"], ["alice", "charlie"])


def test_a_slice_that_is_well_again_leaves_the_event_and_tells_nobody(board: Board) -> None:
    board.say(board.fact("bob", "alice"))
    board.told()

    board.say(board.fact("alice"))

    assert board.told() == []
    assert HealthEvent.objects.get().starts == [board.start_of["alice"]]


def test_a_fault_that_flutters_between_slices_is_one_event_and_told_once_to_each_holder(board: Board) -> None:
    told = []
    for name in ("bob", "bob", "alice", "bob"):
        board.later(MINUTE, board.fact(name))
        told.append(board.told())
        board.later(MINUTE)

    assert told == [["bob"], [], ["alice"], []]
    assert HealthEvent.objects.count() == 1


def test_a_fault_that_comes_back_without_its_place_reaches_those_who_were_not_told(board: Board) -> None:
    board.later(MINUTE, board.fact("bob"))
    first = board.told()
    board.later(MINUTE)

    board.later(MINUTE, board.fact())

    assert (first, board.told()) == (["bob"], ["alice", "charlie"])
    assert HealthEvent.objects.count() == 1


def test_who_gets_the_slice_after_the_fault_is_not_told_of_it_but_of_the_next_one(board: Board) -> None:
    board.later(MINUTE, board.fact("bob"))
    board.later(MINUTE)
    before = board.told()
    lease = board.leases["bob"]
    Lease.objects.filter(pk=lease.pk).update(user=board.world.user("charlie"), uid="lse-next")
    Notification.objects.filter(user=board.world.user("bob")).update(target="lse-old")

    quiet = board.told()
    board.later(MINUTE, board.fact("bob", detail="again"))

    assert (before, quiet, board.told()) == (["bob"], [], ["charlie"])


def test_a_wide_slice_is_hit_wherever_in_it_the_fault_lies(world: World) -> None:
    lease = world.active("bob", "h100-3g-40gb")
    place = Placement.objects.select_related("device").get(lease=lease)
    beside = world.active("alice")
    assert Placement.objects.get(lease=beside).device_id == place.device_id
    fact = HealthFact(
        place.device.uuid, "94", "warning", "x", "restart_workload", (place.start + place.size - 1,)
    )

    tell_of_health(see_health(place.device.node, [fact], now=world.now), now=world.now)

    assert [row.user.username for row in Notification.objects.filter(kind="lease.health")] == ["bob"]


def test_holders_of_whole_cards_and_shares_hear_of_every_fault_on_them(world: World) -> None:
    for flavor, name in (("h100", "bob"), ("l40s-quarter", "charlie")):
        place = Placement.objects.select_related("device").get(lease=world.active(name, flavor))
        fact = HealthFact(
            place.device.uuid, "94", "warning", "x", "restart_workload", (1,) if name == "bob" else (0,)
        )
        tell_of_health(see_health(place.device.node, [fact], now=world.now), now=world.now)

    told = Notification.objects.filter(kind="lease.health")
    assert sorted(row.user.username for row in told) == ["bob", "charlie"]


def test_a_fault_of_slices_keeps_the_card_in_work(board: Board) -> None:
    board.say(board.fact("bob"))

    assert Device.objects.get(pk=board.device.pk).health == "ok"


def test_a_report_that_repeats_itself_writes_nothing(board: Board) -> None:
    facts = [board.fact("bob", "alice")]
    board.later(MINUTE, *facts)
    board.told()

    with CaptureQueriesContext(connection) as asked:
        news = see_health(board.device.node, [replace(fact) for fact in facts], now=board.now)

    assert news == []
    assert not [sql for query in asked if not (sql := query["sql"]).startswith("SELECT") or " FOR " in sql]
