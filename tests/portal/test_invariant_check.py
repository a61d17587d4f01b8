"""The hourly check tells operators once what is broken, once what is healed, and never takes silence for health."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.test import Client

from portal.common import invariants
from portal.common.models import InvariantCheck
from portal.common.sql import execute
from portal.notifications.models import Notification
from portal.web.notifications.rows import notification_rows
from scheduler import invariant_check, tasks
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def told() -> list[tuple[str, str]]:
    rows = Notification.objects.filter(kind__startswith="invariant.").select_related("user")
    return sorted((row.user.username, row.kind) for row in rows)


def spoil(by: int) -> None:
    execute("UPDATE quotas_quota SET used_milli = used_milli + %s", [by])


def test_a_breach_is_told_once_and_its_healing_too(world: World) -> None:
    invariant_check.check(now=world.now)
    assert (InvariantCheck.objects.get().breaches, told()) == ([], [])

    spoil(1)
    for hours in (1, 2, 3):
        invariant_check.check(now=world.now + hours * HOUR)
        Notification.objects.filter(read_at=None).update(read_at=world.now + hours * HOUR)
    row = InvariantCheck.objects.get()
    assert [one["name"] for one in row.breaches] == ["quota_counters"]
    assert row.breaches[0]["since"] == (world.now + HOUR).isoformat()
    assert Notification.objects.get(kind="invariant.broken").read_at == world.now + HOUR, "told anew"
    assert told() == [("operator", "invariant.broken")]

    spoil(-1)
    invariant_check.check(now=world.now + 4 * HOUR)
    assert InvariantCheck.objects.get().breaches == []
    assert told() == [("operator", "invariant.broken"), ("operator", "invariant.healed")]
    sentences = [row.text for row in notification_rows(Notification.objects.order_by("kind"))]
    assert all("quota_counters" in sentence for sentence in sentences)


def test_a_check_that_cannot_be_finished_changes_nothing_that_was_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(1)
    invariant_check.check(now=world.now)

    def late() -> Any:
        raise DatabaseError("canceling statement due to statement timeout") from ValueError()

    monkeypatch.setattr(invariant_check, "broken", late)
    row = invariant_check.check(now=world.now + HOUR)

    assert "statement timeout" in row.failure
    assert (row.checked_at, row.tried_at) == (world.now, world.now + HOUR)
    assert [one["name"] for one in row.breaches] == ["quota_counters"]
    assert told() == [("operator", "invariant.broken")]


def test_a_check_that_could_not_be_finished_is_said(world: World) -> None:
    InvariantCheck.objects.create(tried_at=world.now, failure="canceling statement due to statement timeout")
    operator = Client()
    operator.force_login(world.user("operator"))

    assert "The rows could not be checked" in operator.get("/operations/nodes/").text
    told = operator.get("/api/v1/fleet/invariants/").json()
    assert told["checked_at"] is None
    assert told["failure"] == "canceling statement due to statement timeout"


def test_an_older_look_does_not_write_over_a_newer_one(world: World) -> None:
    invariant_check.check(now=world.now + HOUR)
    spoil(1)

    assert invariant_check.check(now=world.now).breaches == []
    assert told() == []


def test_the_task_the_page_the_figures_and_the_command_say_it(world: World, capsys: Any) -> None:
    operator = Client()
    operator.force_login(world.user("operator"))
    assert "berth_invariants" not in operator.get("/metrics").text, "nothing is known yet"

    spoil(1)
    tasks.check_invariants()

    assert "berth_invariants_broken 1.0" in operator.get("/metrics").text
    assert "quota_counters" in operator.get("/operations/nodes/").text
    (told,) = operator.get("/api/v1/fleet/invariants/").json()["broken"]
    assert told["name"] == "quota_counters"
    assert told["offenders"]
    with pytest.raises(CommandError):
        call_command("check_invariants", json=True)
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["broken"]] == ["quota_counters"]


@pytest.mark.django_db(transaction=True)
def test_the_look_is_one_snapshot_that_cannot_write() -> None:
    names = ("transaction_isolation", "transaction_read_only", "statement_timeout")
    settings = " || ' ' || ".join(f"current_setting('{name}')" for name in names)
    asked = invariants.Invariant("modes", "-", f"SELECT {settings}")

    (breach,) = invariants.broken([asked])

    assert breach.offenders == ("repeatable read on 2min",)
