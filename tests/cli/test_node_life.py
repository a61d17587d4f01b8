from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer

from portal.cli.nodes import deadline
from portal.fleet.models import Device, Node
from tests.portal.builders import World

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_an_operator_sees_whom_a_drain_reaches_then_drains_and_takes_it_back(
    world: World, berth: Any
) -> None:
    lease = world.active("bob", "h100", duration_s=7200)

    seen = berth("node", "drain", "gpu-01", "--by", "30m", "--preview", who="operator").stdout
    assert lease.uid in seen
    assert not Node.objects.get(name="gpu-01").is_cordoned

    asked = berth("node", "drain", "gpu-01", "--by", "30m", "--reason", "fan", "--json", who="operator")
    found = json.loads(asked.stdout)
    assert (found["drain"], found["leases"]) == ("draining", [lease.uid])
    assert "draining" in berth("nodes", who="operator").stdout
    assert lease.uid in berth("node", "show", "gpu-01", who="operator").stdout

    back = json.loads(berth("node", "undrain", "gpu-01", "--json", who="operator").stdout)
    assert (back["drain"], back["by"]) == ("", None)
    lease.refresh_from_db()
    assert lease.wanted_until is None


def test_a_drain_without_a_reason_is_not_begun(world: World, berth: Any) -> None:
    refused = berth("node", "drain", "gpu-01", who="operator")

    assert refused.exit_code == 2
    assert not Node.objects.get(name="gpu-01").is_cordoned


def test_a_key_is_asked_for_and_shown_and_an_agent_too_old_says_so(world: World, berth: Any) -> None:
    Node.objects.filter(name="gpu-01").update(
        public_key=bytes(32), key_changed_at=world.now - timedelta(days=3), features=["rotate"]
    )
    Node.objects.filter(name="gpu-03").update(public_key=bytes(32))

    asked = json.loads(berth("node", "rotate-key", "gpu-01", "--json", who="operator").stdout)
    shown = berth("node", "show", "gpu-01", who="operator").stdout
    refused = berth("node", "rotate-key", "gpu-03", who="operator")

    assert asked["key_change_asked_at"] is not None
    assert "3 d" in shown
    assert refused.exit_code == 1
    assert "too old" in refused.stderr


def test_others_are_told_that_it_is_not_theirs_to_do(world: World, berth: Any) -> None:
    calls = (
        ("drain", "gpu-01", "--reason", "x"),
        ("undrain", "gpu-01"),
        ("rotate-key", "gpu-01"),
        ("show", "gpu-01"),
    )
    assert [berth("node", *words).exit_code for words in calls] == [1, 1, 1, 1]
    assert not Node.objects.get(name="gpu-01").is_cordoned


@pytest.mark.parametrize(
    ("text", "hours"), [("30m", 0.5), ("4h", 4), ("2d", 48), (" 1H ", 1), ("2026-03-01T13:00:00+00:00", 1)]
)
def test_a_deadline_is_a_time_from_now_or_an_instant(text: str, hours: float) -> None:
    assert datetime.fromisoformat(deadline(text, NOON)) == NOON + timedelta(hours=hours)


def test_a_deadline_that_is_neither_says_how_to_write_it() -> None:
    with pytest.raises(typer.BadParameter):
        deadline("soon", NOON)


def test_what_waits_is_listed_before_it_is_accepted(world: World, berth: Any) -> None:
    Device.objects.filter(node__name="gpu-01", index=0).update(
        is_accepted=False, accepted={"model": "A100", "memory_mib": 81_920}
    )

    seen = berth("node", "accept", "gpu-01", "--preview", who="operator").stdout
    assert "was A100, 81920 MiB" in seen
    assert Device.objects.filter(node__name="gpu-01", is_accepted=False).count() == 1

    assert "accepted" in berth("node", "accept", "gpu-01", who="operator").stdout
    assert not Device.objects.filter(node__name="gpu-01", is_accepted=False).exists()
    assert "nothing" in berth("node", "accept", "gpu-01", who="operator").stdout
    assert berth("node", "accept", "gpu-01", who="bob").exit_code == 1
