"""The demo's rules: a policy with pools by day and night, two teams that lend each other, and one that goes first."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from portal.accounts.models import User
from portal.policies.models import Policy
from portal.policies.selectors import active_version
from portal.policies.services import save_policy
from portal.quotas.cohorts import create_cohort
from portal.quotas.grants import give_priority
from portal.quotas.models import Cohort, PriorityGrant, Quota
from portal.quotas.services import set_quota
from portal.teams.models import Team
from portal.teams.selectors import Rights

WEEKDAYS = [0, 1, 2, 3, 4]
RULES: dict[str, Any] = {
    "order": "default",
    "place": "default",
    "pools": {
        "parts": {"interactive": 1, "training": 4, "inference": 1},
        "times": [
            {
                "days": WEEKDAYS,
                "from": "08:00",
                "to": "19:00",
                "parts": {"interactive": 3, "training": 2, "inference": 1},
            }
        ],
        "zone": "Europe/Berlin",
    },
    "backfill": "easy",
}
COHORT = "Vision and language"
# Guarantees in weighted thousandths: language uses more than its own and borrows from vision.
MEMBERS = (("vision", 26_000, 28_000), ("language", 6_000, 24_000))


def make_rules(teams: dict[str, Team], people: dict[str, User], now: datetime) -> None:
    """Make policy, cohort and priority where there are none yet."""
    operator = people["operator"]
    rights = Rights(operator)
    if not Policy.objects.exclude(made_by=None).exists():
        save_policy(
            actor=operator,
            rights=rights,
            name="day and night",
            body=RULES,
            note="Interactive work first by day, training by night",
            based_on=active_version(),
            now=now,
        )
    if not Cohort.objects.exists():
        cohort = create_cohort(actor=operator, rights=rights, name=COHORT, now=now)
        for slug, guaranteed, ceiling in MEMBERS:
            set_quota(
                team=teams[slug],
                actor=operator,
                rights=rights,
                guaranteed_milli=guaranteed,
                ceiling_milli=ceiling,
                cohort_id=cohort.pk,
                version=Quota.objects.get(team=teams[slug]).version,
                now=now,
            )
    if not PriorityGrant.objects.exists():
        give_priority(
            team=teams["speech"],
            actor=operator,
            rights=rights,
            steps=5,
            starts_at=now - timedelta(days=1),
            ends_at=now + timedelta(days=5),
            reason="Conference deadline",
            now=now,
        )
