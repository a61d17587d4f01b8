"""Rows of the benchmark fleet: 2 nodes × 8 whole A100, a team with a quota, a person with a token.

``python -m tools.bench.fleet`` runs in the environment of the stack and prints what a client needs.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

NODES = ("bench-01", "bench-02")
BOARD, COUNT = "a100-80gb", 8
FLAVOR, TEAM = "a100", "vision"
MICRO_PER_HOUR = 1_650_000


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from portal.common.clock import db_now

    json.dump(prepare(db_now()), sys.stdout)


def prepare(now: Any) -> dict[str, Any]:
    """Make every row and return the person's token and each node's enrolment secret."""
    from portal.accounts.models import User
    from portal.accounts.services import create_token
    from portal.agents.services import create_enrol_token
    from portal.quotas.models import Quota
    from portal.teams.models import Role
    from portal.teams.services import add_member, create_team

    root = create_team(name="Bench", slug="bench", parent=None, now=now, cost_centre="B-000")
    team = create_team(name="Vision", slug=TEAM, parent=root, now=now, cost_centre="B-100")
    for one in (root, team):
        Quota.objects.create(team=one, guaranteed_milli=8_000, ceiling_milli=16_000)
    bob = User.objects.create(username="bob", display_name="Bob")
    add_member(team=team, user=bob, role=Role.RESEARCHER, now=now)
    catalogue(now)
    enrol = {
        name: create_enrol_token(node_name=name, actor=None, now=now, life=timedelta(hours=1)).secret
        for name in NODES
    }
    token = create_token(user=bob, name="bench", scopes=["read", "lease:write"], days=1, now=now).secret
    return {"token": token, "team": team.slug, "flavor": FLAVOR, "enrol": enrol}


def catalogue(now: Any) -> None:
    """Make the devices as their agents will report them, one flavor and its price."""
    from psycopg.types.range import TimestamptzRange

    from nodeagent.protocol.boards import device_facts
    from portal.catalog.models import Flavor, Rate, RateCard
    from portal.fleet.models import DeviceModel, Node
    from portal.fleet.services import learn_devices

    for name in NODES:
        node = Node.objects.create(name=name, created_at=now)
        learn_devices(node, device_facts(name, BOARD, COUNT, ("exclusive",)), now=now, accepts=True)
    model = DeviceModel.objects.get(slug=BOARD)
    card = RateCard.objects.create(name="Standard", currency="EUR", is_default=True)
    Rate.objects.create(
        card=card,
        device_model=model,
        micro_per_hour=MICRO_PER_HOUR,
        valid=TimestamptzRange(now - timedelta(days=1), None),
        created_at=now,
    )
    Flavor.objects.create(
        slug=FLAVOR,
        name="Whole A100",
        device_model=model,
        mode="exclusive",
        share_milli=1000,
        memory_mib=model.memory_mib,
        max_count=COUNT,
    )


if __name__ == "__main__":
    main()
