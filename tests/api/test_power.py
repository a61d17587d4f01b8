"""Waking a node over the API: what is no time in the next 90 days is refused by name and changes nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.fleet.models import Node

pytestmark = pytest.mark.django_db
WAKE = "nodes/gpu-03/wake/"


@pytest.mark.parametrize(
    "until",
    [
        "", "tomorrow", "4", 4, -1, 1.5, True, None, [], {}, "9" * 40, "NaN", "x" * 5000,
        "2026-01-01T00:00:00Z", "2027-01-01T00:00:00", "2999-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00",
    ],
)  # fmt: skip
def test_a_time_that_cannot_be_is_refused_by_name(calls: Any, until: Any) -> None:
    answer = calls("operator").post(WAKE, {"until": until})

    assert answer.status_code == 422, answer.content
    assert "until" in answer.text
    assert Node.objects.get(name="gpu-03").power_rule == ""


@pytest.mark.parametrize("hours", [4, "4", "soon", None])
def test_hours_are_no_field_of_the_api(calls: Any, hours: Any) -> None:
    answer = calls("operator").post(WAKE, {"hours": hours})

    assert answer.status_code == 422
    assert "hours" in answer.text
    assert Node.objects.get(name="gpu-03").power_rule == ""


def test_a_time_to_come_keeps_it_awake_until_then(calls: Any) -> None:
    until = timezone.now() + timedelta(hours=4)

    answer = calls("operator").post(WAKE, {"until": until.isoformat()})

    assert answer.status_code == 200
    assert Node.objects.get(name="gpu-03").power_rule_until == until
