"""What a series holds is judged as the whole: above the team's threshold it waits for an approver."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.leases.models import LeaseRequest, Reservation
from portal.leases.reservations import (
    SeriesSpec,
    approve_reservation,
    cancel_reservation,
    create_reservation,
    held_s,
    make_occurrences,
    reject_reservation,
)
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


@pytest.fixture
def strict(world: World) -> World:
    """A world in which bob's team needs an approval above six GPU hours."""
    team = world.team("perception")
    team.approval_above_gpu_seconds = 6 * 3600
    team.save()
    return world


def reserve(world: World, *, who: str = "bob", repeat: str = "daily", days: int = 0) -> Reservation:
    first = world.now + DAY
    spec = SeriesSpec("h100", 3600, first, repeat, first + days * DAY if days else None)
    return create_reservation(
        team=world.team("perception"),
        actor=world.user(who),
        rights=world.rights(who),
        spec=spec,
        now=world.now,
    )


def decision(world: World, series: Reservation, name: str, note: str = "ok") -> dict[str, object]:
    return {
        "series": series, "actor": world.user(name), "rights": world.rights(name), "note": note, "now": world.now,
    }  # fmt: skip


def states(series: Reservation) -> list[str]:
    return list(
        LeaseRequest.objects.filter(series=series).order_by("starts_at").values_list("state", flat=True)
    )


def test_an_hour_a_day_needs_the_approval_that_as_much_at_once_needs(strict: World) -> None:
    series = reserve(strict)

    assert series.approval == "awaiting_approval"
    assert make_occurrences(now=strict.now + DAY) == 0
    assert states(series) == []
    assert strict.user("approver").notifications.get().kind == "reservation.awaits_approval"


def test_a_series_below_the_threshold_waits_for_nobody(strict: World) -> None:
    weekly, few = reserve(strict, repeat="weekly"), reserve(strict, days=5)

    assert [weekly.approval, few.approval] == ["not_needed"] * 2
    assert states(few) == ["queued"] * 6
    assert strict.user("approver").notifications.count() == 0


def test_four_weeks_of_times_count_whatever_comes_later(world: World) -> None:
    first = world.now + DAY

    counts = {
        repeat: held_s(SeriesSpec("h100", 60, first, repeat)) // 60
        for repeat in ("daily", "weekdays", "weekly")
    }

    assert counts == {"daily": 28, "weekdays": 20, "weekly": 4}


def test_the_times_of_an_approved_series_need_no_approval(strict: World) -> None:
    series = reserve(strict)
    strict.team("perception").__class__.objects.filter(slug="perception").update(
        approval_above_gpu_seconds=60
    )

    approve_reservation(**decision(strict, series, "approver"))  # type: ignore[arg-type]

    assert set(states(series)) == {"queued"}
    assert len(states(series)) in (27, 28)
    assert strict.user("bob").notifications.get(kind="reservation.approved").facts["by"]
    assert AuditEntry.objects.filter(action="reservation.approved", target=series.uid).exists()


def test_a_rejected_series_ends_and_its_author_reads_why(strict: World) -> None:
    series = reserve(strict)
    with pytest.raises(Invalid):
        reject_reservation(**decision(strict, series, "approver", note=" "))  # type: ignore[arg-type]

    reject_reservation(**decision(strict, series, "approver", note="Use a slice."))  # type: ignore[arg-type]

    assert make_occurrences(now=strict.now + DAY) == 0
    assert states(series) == []
    assert strict.user("bob").notifications.get(kind="reservation.rejected").facts["note"] == "Use a slice."
    with pytest.raises(Conflict):
        approve_reservation(**decision(strict, series, "approver"))  # type: ignore[arg-type]


def test_nobody_decides_on_their_own_and_charlie_on_none(strict: World) -> None:
    series, own = reserve(strict), reserve(strict, who="alice")

    with pytest.raises(Forbidden):
        approve_reservation(**decision(strict, own, "alice"))  # type: ignore[arg-type]
    with pytest.raises(Forbidden):
        approve_reservation(**decision(strict, series, "bob"))  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        approve_reservation(**decision(strict, series, "charlie"))  # type: ignore[arg-type]
    assert set(Reservation.objects.values_list("approval", flat=True)) == {"awaiting_approval"}


def test_a_series_that_was_cancelled_while_it_waited_is_not_approved(strict: World) -> None:
    series = reserve(strict)
    cancel_reservation(series=series, actor=strict.user("bob"), rights=strict.rights("bob"), now=strict.now)

    with pytest.raises(Conflict):
        approve_reservation(**decision(strict, series, "approver"))  # type: ignore[arg-type]


def test_the_database_keeps_a_decision_and_what_was_decided(strict: World) -> None:
    series = reserve(strict)
    rows = Reservation.objects.filter(pk=series.pk)
    for change in (
        {"made_until": strict.now},
        {"approval": "approved"},
        {"approval": "approved", "decided_by": strict.user("bob")},
        {"count": 8},
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            rows.update(**change)
    approve_reservation(**decision(strict, series, "approver"))  # type: ignore[arg-type]
    for change in ({"approval": "not_needed"}, {"duration_s": 86_000}):
        with pytest.raises(IntegrityError), transaction.atomic():
            rows.update(**change)
