"""The bill beside what clusters counted: rows are checked, differences have causes, and no amount changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from nodeagent.protocol.cluster_usage import ClusterUsage as UsageFrame
from nodeagent.protocol.cluster_usage import ClusterUsageRow
from nodeagent.protocol.codec import ProtocolError, decode, encode
from portal.billing.metering import meter_all
from portal.billing.models import UsageRecord
from portal.billing.periods import period_of
from portal.cluster_usage.models import ClusterBooks, CountedJob
from portal.cluster_usage.selectors import DifferenceCause, UsageDifference, usage_differences
from portal.cluster_usage.services import MOST_ROWS_OF_LEASE, store_cluster_usage
from portal.fleet.models import HealthEvent, NodePresence
from portal.leases.models import Lease
from tests.portal.builders import World, build_world

AT = datetime(2026, 2, 5, 9, tzinfo=UTC)
NOW = AT + timedelta(hours=2)
RAN_S = 600


@pytest.fixture
def world(db: None) -> World:
    return build_world(now=NOW)


@pytest.fixture
def lease(world: World) -> Lease:
    found = world.ended(seconds=RAN_S, at=AT)
    meter_all(now=NOW)
    return found


def counted(held: Lease, since: float = 0, until: float = RAN_S, **more: object) -> ClusterUsageRow:
    """Return a row from so many seconds after the lease's start to so many."""
    start, end = int(AT.timestamp() + since), int(AT.timestamp() + until)
    values = {
        "lease": held.uid, "generation": held.generation, "job": "7", "units": 1, "started_at": start,
        "ended_at": end, "elapsed_s": end - start, "state": "CANCELLED", "ended_by": 0,
    }  # fmt: skip
    return ClusterUsageRow(**(values | more))  # type: ignore[arg-type]


def told(lease: Lease, *rows: ClusterUsageRow, skew_s: int = 0, books: str = "on", why: str = "") -> int:
    frame = UsageFrame(lease.node.epoch, int(NOW.timestamp()) + skew_s, books, why, rows)
    assert decode(encode(frame)) == frame
    return store_cluster_usage(lease.node_id, frame, now=NOW)


def difference(lease: Lease) -> UsageDifference:
    (found,) = usage_differences(period_of(AT))
    assert found.lease == lease
    if found.difference_s is not None:
        assert sum(part.seconds for part in found.parts) == found.difference_s
    return found


def causes(found: UsageDifference) -> dict[DifferenceCause, int]:
    return {part.cause: part.seconds for part in found.parts}


def test_a_job_that_ran_as_billed_is_no_difference(lease: Lease) -> None:
    told(lease, counted(lease, -2, RAN_S + 1))

    found = difference(lease)

    assert (found.billed_s, found.cluster_s, found.difference_s) == (600, 603, -3)
    assert (found.before_s, found.after_s, found.jobs) == (2, -1, ("7",))
    assert not found.is_notable


def test_rows_that_come_again_are_folded_and_never_change(lease: Lease) -> None:
    assert told(lease, counted(lease), counted(lease)) == 1
    assert told(lease, counted(lease, until=RAN_S - 100)) == 0

    assert difference(lease).cluster_s == 600


@pytest.mark.parametrize(
    ("change", "skew_s", "why"),
    [
        ({"lease": "l-nobody"}, 0, "unknown_lease"),
        ({"generation": 9}, 0, "unknown_lease"),
        ({}, 100_000, "other_clock"),
        ({"elapsed_s": RAN_S + 1}, 0, "longer_than_span"),
        ({"ended_at": int(AT.timestamp()) - 1, "elapsed_s": 0}, 0, "longer_than_span"),
        ({"ended_at": int(NOW.timestamp()) + 300}, 0, "future"),
        ({"started_at": int(AT.timestamp()) - 900}, 0, "too_early"),
        ({"started_at": 0}, 0, "too_early"),
    ],
)
def test_a_row_that_cannot_be_true_is_left_out_and_counted(
    lease: Lease, change: dict[str, object], skew_s: int, why: str
) -> None:
    assert told(lease, counted(lease, **change), skew_s=skew_s) == 0

    books = ClusterBooks.objects.get(node=lease.node)
    assert (books.refused, books.refused_why) == (1, why)
    assert not CountedJob.objects.exists()
    assert difference(lease).cluster_s is None


def test_a_lease_of_another_node_is_unknown(world: World, lease: Lease) -> None:
    other = next(node for node in world.nodes.values() if node.pk != lease.node_id)
    frame = UsageFrame(other.epoch, int(NOW.timestamp()), "on", "", (counted(lease),))

    assert store_cluster_usage(other.pk, frame, now=NOW) == 0
    assert ClusterBooks.objects.get(node=other).refused_why == "unknown_lease"


def test_what_a_former_agent_says_changes_nothing(lease: Lease) -> None:
    frame = UsageFrame(lease.node.epoch + 1, int(NOW.timestamp()), "on", "", (counted(lease),))

    assert store_cluster_usage(lease.node_id, frame, now=NOW) == 0
    assert not ClusterBooks.objects.exists()


def test_a_lease_has_a_bounded_number_of_rows(lease: Lease) -> None:
    rows = [counted(lease, job=str(n)) for n in range(MOST_ROWS_OF_LEASE + 5)]

    assert told(lease, *rows) == MOST_ROWS_OF_LEASE
    assert ClusterBooks.objects.get().refused == 5


@pytest.mark.parametrize(
    "change",
    [{"started_at": -1}, {"elapsed_s": 10**12}, {"job": "a b"}, {"state": "X" * 21}, {"ended_by": 2**32}],
)
def test_absurd_figures_do_not_pass_the_wire(lease: Lease, change: dict[str, object]) -> None:
    frame = UsageFrame(1, 7, "on", "", (counted(lease, **change),))

    with pytest.raises(ProtocolError):
        decode(encode(frame))


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([{"since": -20}], {DifferenceCause.STARTED_LATER: -20}),
        ([{"until": 540}], {DifferenceCause.ENDED_BY_CLUSTER: 60}),
        ([{"until": 540, "state": "NODE_FAIL"}], {DifferenceCause.ENDED_BY_CLUSTER: 60}),
        ([{"until": 700, "state": "NODE_FAIL"}], {DifferenceCause.HOST_LOST: -100}),
        ([{"until": 700}], {DifferenceCause.UNKNOWN: -100}),
        ([{"since": 30}], {DifferenceCause.UNKNOWN: 30}),
        ([{"elapsed_s": 500}], {DifferenceCause.SUSPENDED: 100}),
        ([{"until": 200, "state": "REQUEUED"}, {"since": 320}], {DifferenceCause.REQUEUED: 120}),
        ([{}, {"since": 100, "job": "8"}], {DifferenceCause.TWIN: -500}),
        (
            [{"since": -20, "until": 540}],
            {DifferenceCause.STARTED_LATER: -20, DifferenceCause.ENDED_BY_CLUSTER: 60},
        ),
    ],
)
def test_each_part_of_a_difference_has_its_cause(
    lease: Lease, rows: list[dict[str, object]], named: dict[DifferenceCause, int]
) -> None:
    told(lease, *(counted(lease, **one) for one in rows))  # type: ignore[arg-type]

    found = difference(lease)

    assert causes(found) == named
    assert found.is_notable
    assert found.is_explained == (DifferenceCause.UNKNOWN not in named)
    assert all(part.evidence for part in found.parts)


def test_a_job_that_has_its_grace_after_our_end_winds_down(lease: Lease) -> None:
    Lease.objects.filter(pk=lease.pk).update(clean_at=lease.ended_at + timedelta(seconds=40))
    told(lease, counted(lease, until=RAN_S + 38))

    assert causes(difference(lease)) == {DifferenceCause.WINDING_DOWN: -38}


@pytest.mark.parametrize("until", [540, 700])
def test_an_end_while_the_cluster_did_not_answer_is_named_so(lease: Lease, until: int) -> None:
    HealthEvent.objects.create(
        node=lease.node, code="cluster_away", severity="warning", detail="", at=AT + timedelta(seconds=500),
        cleared_at=AT + timedelta(seconds=720), cleared_by="agent",
    )  # fmt: skip
    told(lease, counted(lease, until=until))

    (part,) = difference(lease).parts
    assert part.cause == DifferenceCause.CONTROLLER_AWAY
    assert "09:08:20" in part.evidence


def test_an_end_while_the_agent_was_not_heard_is_named_so(lease: Lease) -> None:
    NodePresence.objects.filter(node=lease.node).delete()
    for since, until in ((-3600, 530), (660, 7200)):
        NodePresence.objects.create(
            node=lease.node, began_at=AT + timedelta(seconds=since), ended_at=AT + timedelta(seconds=until)
        )
    told(lease, counted(lease, until=540))

    assert causes(difference(lease)) == {DifferenceCause.AGENT_AWAY: 60}


def test_a_clock_that_is_ahead_moves_no_gap(lease: Lease) -> None:
    told(lease, counted(lease, 3600, RAN_S + 3600), skew_s=3600)

    found = difference(lease)

    assert (found.before_s, found.after_s, found.parts) == (0, 0, ())


def test_without_a_row_nothing_is_known_and_that_is_no_zero(lease: Lease) -> None:
    told(lease, books="off", why="accounting storage is disabled")

    found = difference(lease)

    assert (found.cluster_s, found.difference_s, found.before_s) == (None, None, None)
    assert found.is_notable
    assert not found.is_explained
    assert causes(found) == {DifferenceCause.NO_ROW: 600}


def test_a_report_of_a_cluster_changes_no_bill(lease: Lease) -> None:
    before = list(UsageRecord.objects.values_list("span", "seconds", "micro_per_hour"))

    told(lease, counted(lease, until=10))
    meter_all(now=NOW)

    assert before
    assert list(UsageRecord.objects.values_list("span", "seconds", "micro_per_hour")) == before


def test_nodes_without_accounting_of_a_cluster_are_not_compared(lease: Lease) -> None:
    assert usage_differences(period_of(AT)) == []


@pytest.mark.parametrize(("who", "status"), [("finance", 200), ("operator", 200), ("charlie", 403)])
def test_finance_and_operators_see_the_differences(
    world: World, lease: Lease, client: Client, who: str, status: int
) -> None:
    told(lease, counted(lease, until=540))
    client.force_login(world.people[who])

    page = client.get("/finance/months/2026-02/cluster-usage/")
    answer = client.get("/api/v1/periods/2026-02/cluster-usage/")

    assert (page.status_code, answer.status_code) == (status, status)
    if status == 200:
        assert lease.uid in page.content.decode()
        assert "+60 s" in page.content.decode()
        (row,) = answer.json()["leases"]
        assert (row["difference_s"], row["is_explained"]) == (60, True)
        assert row["parts"][0]["cause"] == "ended_by_cluster"


def test_only_differences_are_shown_until_all_are_asked_for(
    world: World, lease: Lease, client: Client
) -> None:
    told(lease, counted(lease))
    client.force_login(world.people["finance"])

    assert lease.uid not in client.get("/finance/months/2026-02/cluster-usage/").content.decode()
    assert lease.uid in client.get("/finance/months/2026-02/cluster-usage/?all").content.decode()
