"""A drain over HTTP: it gets along with agents that report, and says what it cannot do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from portal.accounts.services import create_token
from portal.common.sql import execute
from portal.fleet.models import Node
from portal.leases import transitions
from portal.leases.draining import drain_node
from portal.leases.models import Lease, LeaseEvent
from tests.api.conftest import Caller
from tests.portal.builders import World, build_world
from tests.portal.meanwhile import is_anybody_blocked

KEY = {"Idempotency-Key": "drain-1"}
HOUR = timedelta(hours=1)


def operator_of(world: World) -> Caller:
    made = create_token(
        user=world.user("operator"), name="test", scopes=["admin"], days=30, now=timezone.now()
    )
    return Caller(made.secret)


def beside_a_report(lease: Lease, act: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Act while a report holds the lease and reaches for the node; returns the answer and how the report went."""
    holds, went = threading.Event(), list[str]()

    def report() -> None:
        try:
            with transaction.atomic():
                transitions.lock_leases([lease.pk])
                holds.set()
                for _try in range(2000):
                    if is_anybody_blocked():
                        break
                execute("UPDATE fleet_node SET last_seen_at = now() WHERE id = %s", [lease.node_id])
            went.append("ok")
        except Exception as error:  # whatever it is, the test shows it
            went.append(repr(error))
        finally:
            connection.close()

    thread = threading.Thread(target=report)
    thread.start()
    assert holds.wait(60)
    answer = act()
    thread.join(60)
    return answer, went


@pytest.mark.django_db(transaction=True)
def test_with_a_key_a_drain_and_its_end_wait_for_a_report_of_the_node_and_neither_is_refused() -> None:
    world = build_world()
    lease = world.active("bob", "h100", duration_s=7200)
    by = (world.now + HOUR).isoformat()

    for path, body in (("drain/", {"by": by, "reason": "fans"}), ("undrain/", {})):
        operator = operator_of(world)
        answer, report = beside_a_report(
            lease, lambda p=path, b=body, o=operator: o.post(f"nodes/gpu-01/{p}", b, **KEY | {"Idempotency-Key": p})
        )  # fmt: skip

        assert (answer.status_code, report) == (200, ["ok"])
        lease.refresh_from_db()
        assert lease.not_after == (world.now + HOUR if path == "drain/" else world.now + 2 * HOUR)


@pytest.mark.django_db(transaction=True)
def test_with_a_key_a_node_that_is_uncordoned_during_a_report_gives_leases_their_end_back() -> None:
    world = build_world()
    lease = world.active("bob", "h100", duration_s=7200)
    drain_node(
        node=lease.node, by=world.now + HOUR, reason="fans", actor=world.user("operator"), now=world.now
    )
    operator = operator_of(world)

    answer, report = beside_a_report(lease, lambda: operator.post("nodes/gpu-01/uncordon/", {}, **KEY))

    assert (answer.status_code, report) == (200, ["ok"])
    lease.refresh_from_db()
    assert (lease.not_after, lease.wanted_until) == (world.now + 2 * HOUR, None)


@pytest.mark.django_db
def test_a_repeat_with_the_same_key_changes_nothing_more(world: World, calls: Any) -> None:
    world.active("bob", "h100", duration_s=7200)
    body = {"by": (world.now + HOUR).isoformat(), "reason": "fans"}
    first = calls("operator").post("nodes/gpu-01/drain/", body, **KEY)
    count = (LeaseEvent.objects.count(), world.user("bob").notifications.count())

    again = calls("operator").post("nodes/gpu-01/drain/", body, **KEY)

    assert (again.json(), again["Idempotent-Replayed"]) == (first.json(), "true")
    assert (LeaseEvent.objects.count(), world.user("bob").notifications.count()) == count


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["drain/preview/", "drain/"])
def test_a_time_too_far_ahead_is_refused_by_name_in_preview_and_drain(
    world: World, calls: Any, path: str
) -> None:
    body = {"by": "2999-12-31T23:59:59Z"} | ({} if "preview" in path else {"reason": "fans"})

    refused = calls("operator").post(f"nodes/gpu-01/{path}", body)

    assert refused.status_code == 422
    assert "90 days" in str(refused.json())
    assert not Node.objects.get(name="gpu-01").is_cordoned
