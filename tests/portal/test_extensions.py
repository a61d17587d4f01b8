"""Whatever raises what a request takes is judged as the whole: an extension above the threshold waits for approval."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.leases import lifecycle
from portal.leases.approvals import approve_request
from portal.leases.elastic import set_growth
from portal.leases.extending import (
    approve_extension,
    extend_lease,
    lapse_extensions,
    reject_extension,
    waiting_extension,
    withdraw_extension,
)
from portal.leases.models import Lease, LeaseExtension
from tests.portal.builders import World, build_world
from tests.portal.meanwhile import meanwhile

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
SEVEN = 7 * 3600


@pytest.fixture
def strict(world: World) -> World:
    """A world in which bob's team needs an approval above four GPU hours."""
    return with_threshold(world)


def with_threshold(world: World) -> World:
    team = world.team("perception")
    team.approval_above_gpu_seconds = 4 * 3600
    team.save()
    return world


def extend(world: World, lease: Lease, extra_s: int) -> LeaseExtension | None:
    return extend_lease(lease=lease, actor=world.user("bob"), extra_s=extra_s, now=world.now)


def decision(world: World, lease: Lease, name: str, note: str = "ok") -> dict[str, object]:
    return {
        "lease": lease,
        "actor": world.user(name),
        "rights": world.rights(name),
        "note": note,
        "now": world.now,
    }


def test_an_hour_extended_by_seven_needs_the_approval_that_eight_at_once_need(strict: World) -> None:
    lease = strict.active("bob", "h100", duration_s=3600)

    asked = extend(strict, lease, SEVEN)

    lease.refresh_from_db()
    assert asked is not None
    assert asked.state == "awaiting_approval"
    assert lease.not_after == strict.now + HOUR
    assert strict.user("approver").notifications.get().kind == "extension.awaits_approval"


def test_small_steps_are_judged_as_their_sum(strict: World) -> None:
    lease = strict.active("bob", "h100", duration_s=3600)

    assert extend(strict, lease, 3 * 3600) is None
    assert extend(strict, lease, 60) is not None

    lease.refresh_from_db()
    assert lease.not_after == strict.now + 4 * HOUR


def test_an_approved_extension_takes_effect(strict: World) -> None:
    lease = strict.active("bob", "h100", duration_s=3600)
    extend(strict, lease, SEVEN)

    approve_extension(**decision(strict, lease, "approver"))  # type: ignore[arg-type]

    lease.refresh_from_db()
    assert lease.not_after == strict.now + 8 * HOUR
    assert waiting_extension(lease) is None
    assert strict.user("bob").notifications.get().kind == "extension.approved"


def test_a_rejected_one_leaves_the_end_and_needs_a_reason(strict: World) -> None:
    lease = strict.active("bob", "h100", duration_s=3600)
    extend(strict, lease, SEVEN)

    with pytest.raises(Invalid):
        reject_extension(**decision(strict, lease, "approver", " "))  # type: ignore[arg-type]
    reject_extension(**decision(strict, lease, "approver", "Too long."))  # type: ignore[arg-type]

    lease.refresh_from_db()
    assert lease.not_after == strict.now + HOUR
    assert strict.user("bob").notifications.get().kind == "extension.rejected"


def test_nobody_decides_on_their_own_and_charlie_sees_nothing(strict: World) -> None:
    lease = strict.active("alice", "h100", team="perception", duration_s=3600)
    extend_lease(lease=lease, actor=strict.user("alice"), extra_s=SEVEN, now=strict.now)

    with pytest.raises(Forbidden):
        approve_extension(**decision(strict, lease, "alice"))  # type: ignore[arg-type]
    with pytest.raises(Forbidden):
        approve_extension(**decision(strict, lease, "bob"))  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        approve_extension(**decision(strict, lease, "charlie"))  # type: ignore[arg-type]


def test_only_one_waits_at_a_time_and_it_can_be_withdrawn(strict: World) -> None:
    lease = strict.active("bob", "h100", duration_s=3600)
    extend(strict, lease, SEVEN)

    with pytest.raises(Conflict, match="waits for approval already"):
        extend(strict, lease, 60)
    withdraw_extension(lease=lease, actor=strict.user("bob"), rights=strict.rights("bob"), now=strict.now)

    assert extend(strict, lease, 60) is None
    with pytest.raises(Conflict, match="any more"):
        approve_extension(**decision(strict, lease, "approver"))  # type: ignore[arg-type]


def test_only_its_holder_or_an_admin_takes_an_extension_back(strict: World) -> None:
    lease = strict.active("bob", "h100", duration_s=3600)
    extend(strict, lease, SEVEN)

    for name, refused in (("charlie", NotFound), ("approver", Forbidden)):
        with pytest.raises(refused):
            withdraw_extension(
                lease=lease, actor=strict.user(name), rights=strict.rights(name), now=strict.now
            )

    assert lease.extensions.get().state == "awaiting_approval"


def test_what_cannot_be_kept_any_more_is_said_to_the_approver(strict: World) -> None:
    lease = strict.active("bob", "h100", duration_s=3600)
    extend(strict, lease, SEVEN)
    lifecycle.release_lease(lease=lease, actor=strict.user("bob"), now=strict.now)

    with pytest.raises(Conflict, match="active"):
        approve_extension(**decision(strict, lease, "approver"))  # type: ignore[arg-type]

    assert lapse_extensions(now=strict.now) == 1
    assert LeaseExtension.objects.get().state == "lapsed"


def test_what_was_approved_at_first_can_be_had_again_after_a_cut(strict: World) -> None:
    request = strict.submit("bob", "h100", duration_s=8 * 3600)
    approve_request(
        request=request, actor=strict.user("approver"), rights=strict.rights("approver"), note="",
        now=strict.now,
    )  # fmt: skip
    strict.turn()
    lease = Lease.objects.get(request=request)
    strict.ready(lease)
    Lease.objects.filter(pk=lease.pk).update(not_after=strict.now + HOUR)

    assert extend(strict, lease, SEVEN) is None
    assert extend(strict, lease, 3600) is not None


def test_growing_is_judged_with_the_time_that_was_added(strict: World) -> None:
    lease = strict.active("bob", "h100", duration_s=3600, most_count=1)
    assert extend(strict, lease, 2 * 3600) is None

    with pytest.raises(Invalid):
        set_growth(
            request=lease.request, most_count=2, actor=strict.user("bob"), rights=strict.rights("bob"),
            now=strict.now,
        )  # fmt: skip


def test_the_database_refuses_a_second_one_and_a_decision_of_ones_own(strict: World) -> None:
    lease = strict.active("bob", "h100", duration_s=3600)
    asked = extend(strict, lease, SEVEN)
    assert asked is not None
    again = {"lease": lease, "extra_s": 1, "asked_by": asked.asked_by, "asked_at": strict.now}

    with pytest.raises(IntegrityError, match="one_extension_waits"), transaction.atomic():
        LeaseExtension.objects.create(**again)
    with pytest.raises(IntegrityError, match="decided_by_another"), transaction.atomic():
        LeaseExtension.objects.update(state="approved", decided_by=asked.asked_by)
    LeaseExtension.objects.update(state="withdrawn")
    with pytest.raises(IntegrityError, match="decided"), transaction.atomic():
        LeaseExtension.objects.update(state="awaiting_approval")


@pytest.mark.django_db(transaction=True)
def test_of_two_who_extend_at_once_the_second_is_judged_with_what_the_first_added() -> None:
    world = with_threshold(build_world())
    lease = world.active("bob", "h100", duration_s=3600)

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert extend(world, lease, 3 * 3600) is None
            second = meanwhile(lambda: extend(world, lease, 3 * 3600), pool)
            assert not second.done()
        assert second.result(timeout=60) is not None

    lease.refresh_from_db()
    assert lease.not_after == world.now + 4 * HOUR
