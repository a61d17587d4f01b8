"""Rows of the drill: three nodes, teams with quotas, people with tokens, and months that can be closed.

``python -m tools.drill.fleet`` runs in the environment of the stack and prints what the drill needs. Each node has
a device of a model of its own beside those of the load: a lease on it shows that this node works, whatever waits.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timedelta
from typing import Any

# node: (board, how many, modes) of each kind; the last one is the node's probe.
BOARDS: dict[str, tuple[tuple[str, int, tuple[str, ...]], ...]] = {
    "drill-01": (("a100-80gb", 3, ("exclusive",)), ("h200-141gb", 1, ("exclusive",))),
    "drill-02": (("h100-80gb", 2, ("mig",)), ("a30-24gb", 1, ("exclusive",))),
    "drill-03": (
        ("l40s-48gb", 2, ("memlimit",)),
        ("a100-80gb", 2, ("exclusive",)),
        ("a100-40gb", 1, ("mig",)),
    ),
}
PROBES = {"drill-01": "probe-01", "drill-02": "probe-02", "drill-03": "probe-03"}
# slug: (board, mode, profile, share, memory, most at once)
FLAVORS: dict[str, tuple[str, str, str, int, int, int]] = {
    "a100": ("a100-80gb", "exclusive", "", 0, 0, 3),
    "h100-1g": ("h100-80gb", "mig", "1g.10gb", 0, 0, 4),
    "h100-3g": ("h100-80gb", "mig", "3g.40gb", 0, 0, 2),
    "l40s-12gb": ("l40s-48gb", "memlimit", "", 250, 11_516, 4),
    "probe-01": ("h200-141gb", "exclusive", "", 0, 0, 1),
    "probe-02": ("a30-24gb", "exclusive", "", 0, 0, 1),
    "probe-03": ("a100-40gb", "mig", "2g.10gb", 0, 0, 1),
}
LOAD = ("a100", "h100-1g", "h100-3g", "l40s-12gb")
MICRO_PER_HOUR = 3_600_000  # a thousand micro-units for each second of a whole device
TEAMS = {"vision": 9_000, "speech": 6_000, "probes": 9_000}
# who: (team, role); "" is the root team
PEOPLE = {
    "bob": ("vision", "researcher"),
    "carol": ("vision", "researcher"),
    "alice": ("vision", "admin"),
    "dana": ("speech", "researcher"),
    "erin": ("", "approver"),
    "fin": ("", "finance"),
    "olga": ("", "operator"),
    "rhea": ("", "admin"),
    "pia": ("probes", "researcher"),
}
ROOT = "drill"
APPROVAL_ABOVE_S = 20


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from portal.common.clock import db_now

    json.dump(prepare(db_now(), months=int(sys.argv[1]) if len(sys.argv) > 1 else 3), sys.stdout)


def prepare(now: datetime, *, months: int) -> dict[str, Any]:
    """Make every row; return tokens by person, enrolment secrets by node and the months that can be closed."""
    from portal.accounts.models import User
    from portal.accounts.services import create_token
    from portal.agents.services import create_enrol_token
    from portal.quotas.models import Quota
    from portal.teams.models import Team
    from portal.teams.services import add_member, create_team

    root = create_team(name="Drill", slug=ROOT, parent=None, now=now, cost_centre="D-000")
    Quota.objects.create(team=root, guaranteed_milli=12_000, ceiling_milli=30_000)
    teams = {"": root}
    for number, (slug, ceiling) in enumerate(TEAMS.items(), 1):
        teams[slug] = create_team(
            name=slug.title(), slug=slug, parent=root, now=now, cost_centre=f"D-{number}00"
        )
        Quota.objects.create(team=teams[slug], guaranteed_milli=3_000, ceiling_milli=ceiling)
    Team.objects.filter(slug="speech").update(approval_above_gpu_seconds=APPROVAL_ABOVE_S)
    tokens = {}
    for name, (team, role) in PEOPLE.items():
        user = User.objects.create(username=name, display_name=name.title())
        add_member(team=teams[team], user=user, role=role, now=now)
        tokens[name] = create_token(user=user, name="drill", scopes=["admin"], days=1, now=now).secret
    catalogue(now)
    enrol = {
        name: create_enrol_token(node_name=name, actor=None, now=now, life=timedelta(hours=1)).secret
        for name in BOARDS
    }
    return {"tokens": tokens, "enrol": enrol, "months": past(teams, now, months)}


def catalogue(now: datetime) -> None:
    """Make the devices as their agents will report them, the flavors and a price for each model."""
    from psycopg.types.range import TimestamptzRange

    from nodeagent.protocol.boards import device_facts
    from portal.catalog.models import Flavor, Rate, RateCard
    from portal.catalog.services import share_of
    from portal.fleet.models import DeviceModel, Node
    from portal.fleet.services import learn_devices

    for name, kinds in BOARDS.items():
        node, facts = Node.objects.create(name=name, created_at=now), []
        for board, count, modes in kinds:
            facts += device_facts(name, board, count, modes, len(facts))
        learn_devices(node, facts, now=now, accepts=True)
    card = RateCard.objects.create(name="Standard", currency="EUR", is_default=True)
    for model in DeviceModel.objects.all():
        Rate.objects.create(
            card=card,
            device_model=model,
            micro_per_hour=MICRO_PER_HOUR,
            valid=TimestamptzRange(now - timedelta(days=2000), None),
            created_at=now,
        )
    for slug, (board, mode, profile, share, memory, most) in FLAVORS.items():
        model = DeviceModel.objects.get(slug=board)
        share_milli, memory_mib = share_of(
            model, mode=mode, profile=profile, share_milli=share, memory_mib=memory
        )
        Flavor.objects.create(
            slug=slug,
            name=slug,
            device_model=model,
            mode=mode,
            profile=profile,
            share_milli=share_milli,
            memory_mib=memory_mib,
            max_count=most,
            preemptible_milli=600,
        )


def past(teams: dict[str, Any], now: datetime, months: int) -> list[str]:
    """Write ended leases of earlier months, not metered yet; return the months, the oldest first."""
    from portal.billing.periods import month_bounds

    begin, found = month_bounds(now)[0], []
    for _month in range(months):
        begin = month_bounds(begin - timedelta(days=1))[0]
        found.append(f"{begin:%Y-%m}")
        for number in range(6):
            _past_lease(teams["vision" if number % 2 else "speech"], begin, number)
    return sorted(found)


def _past_lease(team: Any, month: datetime, number: int) -> None:
    from portal.accounts.models import User
    from portal.catalog.models import Flavor
    from portal.fleet.models import Node
    from portal.leases.models import Lease, LeaseEvent, LeaseRequest, RequestEvent

    flavor = Flavor.objects.get(slug=LOAD[number % len(LOAD)])
    user = User.objects.get(username="bob" if team.slug == "vision" else "dana")
    starts = month + timedelta(days=1 + number, seconds=0.3 * number)
    ends = starts + timedelta(seconds=3600 + 7.7 * number)
    request = LeaseRequest.objects.create(
        team=team, author=user, flavor=flavor, duration_s=7200, remaining_s=7200, name="past",
        state="fulfilled", cost_milli=flavor.share_milli, quote_micro=0, currency="EUR",
        submitted_at=starts, queued_at=starts,
    )  # fmt: skip
    steps = (("draft", "submitted"), ("submitted", "queued"), ("queued", "granted"), ("granted", "fulfilled"))
    RequestEvent.objects.bulk_create(
        RequestEvent(request=request, was=was, now=to, at=ends if to == "fulfilled" else starts)
        for was, to in steps
    )
    lease = Lease.objects.create(
        request=request, team=team, user=user, flavor=flavor, node=Node.objects.order_by("name")[0],
        state="ended", share_milli=flavor.share_milli, cost_milli=request.cost_milli, starts_at=starts,
        not_after=starts + timedelta(seconds=7200), activated_at=starts, ended_at=ends, clean_at=ends,
        end_reason="released",
    )  # fmt: skip
    moves = (
        ("booked", "preparing", starts),
        ("preparing", "active", starts),
        ("active", "ending", ends),
        ("ending", "cleaning", ends),
        ("cleaning", "ended", ends),
    )
    LeaseEvent.objects.bulk_create(LeaseEvent(lease=lease, was=was, now=to, at=at) for was, to, at in moves)


if __name__ == "__main__":
    main()
