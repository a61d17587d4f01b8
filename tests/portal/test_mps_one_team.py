"""The database lets one team at a time onto a device that serves MPS, whatever the code does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from importlib import import_module

import pytest
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from psycopg.types.range import Int8Range, TimestamptzRange

from nodeagent.protocol.codec import decode, encode
from portal.agents.desired import desired_state
from portal.common.invariants import broken
from portal.fleet.models import Device
from portal.leases.hold_periods import hold_until
from portal.leases.models import Lease, LeaseRequest, Placement
from portal.policies.models import Policy
from portal.policies.selectors import active_policy
from scheduler import commit, snapshot
from scheduler.engine.plan import plan
from tests.portal.builders import EPOCH, World, build_world

pytestmark = pytest.mark.django_db
REFUSED = "serves MPS for another team"
UPGRADE = import_module("portal.leases.migrations.0010_mps_one_team")


def rules(version: int, **body: bool) -> None:
    """Put rules in force."""
    Policy.objects.update(is_active=False)
    Policy.objects.create(name="rules", version=version, body=body, is_active=True, created_at=EPOCH)


def hours(world: World, begin: float, end: float) -> TimestamptzRange:
    return TimestamptzRange(world.now + timedelta(hours=begin), world.now + timedelta(hours=end))


def board() -> Device:
    found = Device.objects.filter(node__name="gpu-03").order_by("index").first()
    assert found is not None
    return found


def host(world: World, begin: float, end: float, **more: object) -> Placement:
    fields = {
        "device": board(), "team": world.team("vision"), "mode": "mps", "size": 1, "slots": Int8Range(0, 1),
        "period": hours(world, begin, end), "share_milli": 1000, "memory_mib": 48_000, **more,
    }  # fmt: skip
    return Placement.objects.create(**fields)


def share(world: World, lease: Lease, inside: Placement, team: str, begin: float, end: float) -> Placement:
    return Placement.objects.create(
        lease=lease, device=inside.device, host=inside, team=world.team(team), mode=inside.mode, size=0,
        period=hours(world, begin, end), share_milli=100, memory_mib=1000,
    )  # fmt: skip


@pytest.fixture
def lease(world: World) -> Lease:
    """Any lease: the rule reads placements alone."""
    return world.active("bob")


def test_a_share_of_another_team_is_refused_while_the_first_one_lasts(world: World, lease: Lease) -> None:
    inside = host(world, 0, 4)
    share(world, lease, inside, "vision", 0, 4)

    for begin, end in ((0, 4), (3, 9), (-2, 1)):
        with pytest.raises(IntegrityError, match=REFUSED), transaction.atomic():
            share(world, lease, inside, "language", begin, end)


def test_the_same_team_later_times_and_other_modes_are_welcome(world: World, lease: Lease) -> None:
    inside, later = host(world, 0, 4), host(world, 4, 8, team=world.team("language"))
    share(world, lease, inside, "vision", 0, 4)

    share(world, lease, inside, "vision", 1, 3)
    share(world, lease, later, "language", 4, 8)
    limits = host(world, 8, 9, mode="memlimit")
    share(world, lease, limits, "language", 8, 9)
    share(world, lease, limits, "vision", 8, 9)

    assert Placement.objects.filter(host__isnull=False, met_teams=False).count() == 5


def test_a_share_that_is_gone_keeps_nobody_out(world: World, lease: Lease) -> None:
    inside = host(world, 0, 4)
    first = share(world, lease, inside, "vision", 0, 4)
    Placement.objects.filter(pk=first.pk).update(is_live=False)

    share(world, lease, inside, "language", 0, 4)

    with pytest.raises(IntegrityError, match=REFUSED), transaction.atomic():
        Placement.objects.filter(pk=first.pk).update(is_live=True)


def test_no_change_of_a_share_leads_it_to_another_team(world: World, lease: Lease) -> None:
    inside, later = host(world, 0, 4), host(world, 4, 8, team=world.team("language"))
    first = Placement.objects.filter(pk=share(world, lease, inside, "vision", 0, 4).pk)
    share(world, lease, later, "language", 4, 8)

    for change in (
        {"period": hours(world, 0, 5)},
        {"period": hours(world, 5, 6)},
        {"host": later},
    ):
        with pytest.raises(IntegrityError, match=REFUSED), transaction.atomic():
            first.update(**change)
    share(world, lease, inside, "vision", 1, 2)
    with pytest.raises(IntegrityError, match=REFUSED), transaction.atomic():
        first.update(team=world.team("language"))


def test_a_policy_lets_teams_meet_and_the_share_that_came_says_so(world: World, lease: Lease) -> None:
    rules(1, share_across_teams=True, mps_across_teams=True)
    inside = host(world, 0, 4)
    share(world, lease, inside, "vision", 0, 4)

    came = share(world, lease, inside, "language", 0, 4)

    came.refresh_from_db()
    assert came.met_teams
    assert "mps_of_one_team" not in {breach.invariant.name for breach in broken()}


@pytest.mark.parametrize("body", [{"share_across_teams": True}, {"mps_across_teams": True}, {}])
def test_one_of_the_two_rules_is_not_enough(world: World, lease: Lease, body: dict[str, bool]) -> None:
    rules(1, **body)
    inside = host(world, 0, 4)
    share(world, lease, inside, "vision", 0, 4)

    with pytest.raises(IntegrityError, match=REFUSED), transaction.atomic():
        share(world, lease, inside, "language", 0, 4)


def test_teams_that_met_may_stay_and_be_held_longer_once_rules_are_strict_again(
    world: World, lease: Lease
) -> None:
    rules(1, share_across_teams=True, mps_across_teams=True)
    inside = host(world, 0, 4)
    share(world, lease, inside, "language", 1, 4)
    mine = share(world, lease, inside, "vision", 0, 0.5)
    rules(2)

    reached = hold_until([lease.pk], world.now + timedelta(hours=6))

    mine.refresh_from_db()
    assert reached == mine.period.upper == world.now + timedelta(hours=6)
    assert "mps_of_one_team" not in {breach.invariant.name for breach in broken()}
    with pytest.raises(IntegrityError, match=REFUSED), transaction.atomic():
        share(world, lease, inside, "robotics", 1, 2)


def test_an_upgrade_marks_the_teams_that_have_met_by_then_and_nobody_else(world: World, lease: Lease) -> None:
    inside = host(world, 0, 8)
    alone = share(world, lease, inside, "vision", 5, 8)
    first = share(world, lease, inside, "vision", 0, 4)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET LOCAL session_replication_role = replica")
        second = share(world, lease, inside, "language", 0, 4)
        cursor.execute("SET LOCAL session_replication_role = origin")
        assert "mps_of_one_team" in {breach.invariant.name for breach in broken()}

        cursor.execute(UPGRADE.MARK)

    marked = Placement.objects.filter(met_teams=True).values_list("pk", flat=True)
    assert set(marked) == {first.pk, second.pk}
    assert alone.pk not in marked
    assert "mps_of_one_team" not in {breach.invariant.name for breach in broken()}


def test_a_request_is_told_that_only_boards_of_other_teams_have_room(world: World) -> None:
    world.active("bob", "l40s-quarter", count=4, duration_s=7200)
    theirs = world.submit("charlie", "l40s-quarter")

    assert world.turn() == []

    theirs.refresh_from_db()
    assert theirs.reasons[0]["code"] == "mps_of_other_teams"
    assert theirs.reasons[0]["boards"] == 4
    assert "perception" not in str(theirs.reasons).lower()


def test_the_agent_is_not_told_the_team_of_a_share_that_may_meet_others(world: World) -> None:
    rules(1, share_across_teams=True, mps_across_teams=True)
    mine = world.active("bob", "l40s-quarter", count=4, duration_s=7200)
    theirs = world.active("charlie", "l40s-quarter")

    wanted = desired_state(world.nodes["gpu-03"].pk, now=world.now)

    assert decode(encode(wanted)) == wanted
    assert {lease.lease: lease.team for lease in wanted.leases} == {mine.uid: "perception", theirs.uid: ""}


def test_a_grant_from_an_outdated_picture_is_left_out_and_waits(world: World) -> None:
    world.active("bob", "l40s-quarter", count=4, duration_s=7200)
    theirs = world.submit("charlie", "l40s-quarter")
    seen = replace(snapshot.take(now=world.now), held=())
    policy = active_policy()
    found = plan(seen, policy).grants
    assert [grant.claim_id for grant in found] == [theirs.pk]

    with transaction.atomic():
        made = commit.grants(found, policy_version=policy.version, now=world.now, snapshot=seen)

    assert made == []
    assert LeaseRequest.objects.get(pk=theirs.pk).state == "queued"


@pytest.mark.django_db(transaction=True)
def test_of_two_teams_that_come_at_once_the_second_waits_for_the_first_and_is_refused() -> None:
    world = build_world()
    lease, inside = world.active("bob"), host(world, 0, 4)

    def language(wait_ms: int) -> str:
        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL lock_timeout = {wait_ms}")
                share(world, lease, inside, "language", 0, 4)
            return "in"
        except IntegrityError:
            return "refused"
        except OperationalError:
            return "waiting"
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            share(world, lease, inside, "vision", 0, 4)
            during = pool.submit(language, 50).result()
        after = pool.submit(language, 5000).result()

    assert (during, after) == ("waiting", "refused")
    assert {one.team_id for one in Placement.objects.filter(host=inside)} == {world.team("vision").pk}


@pytest.mark.django_db(transaction=True)
def test_three_teams_racing_for_the_same_devices_never_meet_on_one() -> None:
    world = build_world()
    lease, teams = world.active("bob"), ("vision", "language", "robotics")
    hosts = [host(world, 0, 4, device=device) for device in Device.objects.filter(node__name="gpu-03")]

    def racer(team: str) -> int:
        won = 0
        for inside in hosts:
            try:
                with transaction.atomic():
                    share(world, lease, inside, team, 0, 4)
                won += 1
            except (IntegrityError, OperationalError):
                pass
        connections.close_all()
        return won

    with ThreadPoolExecutor(6) as pool:
        won = sum(pool.map(racer, teams * 2))

    found = Placement.objects.filter(host__isnull=False).values_list("device_id", "team_id")
    assert len(set(found)) == len({device for device, _ in found}) == len(hosts)
    assert won == len(found)
