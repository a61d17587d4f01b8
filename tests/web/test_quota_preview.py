"""Before a quota is set: who of those who wait would be blocked by it, told only of teams in sight."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from portal.audit.models import AuditEntry
from portal.leases.models import LeaseRequest
from portal.quotas.models import Quota
from tests.portal.builders import World
from tests.web.conftest import Publish, SignedIn

AT = "/teams/perception/quota/"


@pytest.fixture
def waiting(world: World, publish: Publish) -> World:
    """bob waits for two whole devices behind charlie, who asked for them first; nothing else is in the way."""
    Quota.objects.update(ceiling_milli=None)
    world.submit("bob", "h100", count=2)
    world.submit("charlie", "h100", count=2, at=world.now - timedelta(minutes=1))
    publish(world.now)
    return world


def uid_of(name: str) -> str:
    return LeaseRequest.objects.get(author__username=name).uid


def typed(ceiling: str, **more: Any) -> dict[str, Any]:
    version = Quota.objects.get(team__slug="perception").version
    return {"guaranteed": "0", "ceiling": ceiling, "lending": "", "cohort": "", "version": version, **more}


def test_a_quota_that_is_too_small_says_whom_it_blocks_and_changes_nothing(
    waiting: World, signed_in: SignedIn
) -> None:
    alice, before = signed_in("alice"), Quota.objects.values().get(team__slug="perception")

    small = alice.post(AT, typed("1", do="preview"))
    enough = alice.post(AT, typed("2", do="preview"))

    assert (small.status_code, enough.status_code) == (200, 200)
    assert "Would be blocked by quota" in small.text
    bobs, charlies = uid_of("bob"), uid_of("charlie")
    assert bobs in small.text
    assert charlies not in small.text, "another team's"
    assert "Nothing would change for anybody" in enough.text
    assert Quota.objects.values().get(team__slug="perception") == before
    assert not AuditEntry.objects.filter(action="quota.changed").exists()


def test_a_preview_refuses_what_setting_it_would_refuse(waiting: World, signed_in: SignedIn) -> None:
    answer = signed_in("alice").post(AT, typed("1", guaranteed="2", do="preview"))

    assert answer.status_code == 422
    assert "cannot be below the guarantee" in answer.text
    assert 'id="tried"' not in answer.text
    assert signed_in("bob").post(AT, typed("1", do="preview")).status_code == 403


def test_the_api_says_the_same(waiting: World, signed_in: SignedIn) -> None:
    body = {"guaranteed_milli": 0, "ceiling_milli": 1000}

    tried = signed_in("alice").post(
        "/api/v1/teams/perception/quota/preview/", body, content_type="application/json"
    ).json()["preview"]  # fmt: skip

    assert [row["request"] for row in tried["blocked"]] == [uid_of("bob")]
    assert tried["counts"]["blocked"] == 1
    assert [(row["team"], row["blocked"], row["would_not_start"]) for row in tried["teams"]] == [
        ("Perception", 1, 1)
    ]


def test_hours_and_memory_that_are_too_few_block_in_the_preview_too(
    waiting: World, signed_in: SignedIn
) -> None:
    alice, before = signed_in("alice"), Quota.objects.values().get(team__slug="perception")

    hours = alice.post(AT, typed("", do="preview", month_hours="1.5"))
    memory = alice.post(AT, typed("", do="preview", most_memory="100"))
    enough = alice.post(AT, typed("", do="preview", month_hours="2", most_memory="160"))

    for small in (hours, memory):
        assert "Would be blocked by quota" in small.text
        assert uid_of("bob") in small.text
        assert uid_of("charlie") not in small.text, "another team's"
    assert "Nothing would change for anybody" in enough.text
    assert Quota.objects.values().get(team__slug="perception") == before
