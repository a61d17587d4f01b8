"""One live turn on a large, nearly full fleet: read the rows, decide, grant 100 leases, commit.

10,000 GPUs (1,000 nodes of 8 whole A100, 250 of 8 H100 in MIG slices), 5,000 requests waiting in 20 teams.
Each round ends 100 leases first, so that there is something to grant. One process, no agents.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

NODES = {"a100-80gb": 1000, "h100-80gb": 250}
BOARDS = 8
BATCH = 1000  # rows of one INSERT
WAITING, TEAMS, GRANTS, ROUNDS, WARM_UP = 5000, 20, 100, 7, 2
HOURS = 3600


def measure() -> dict[str, Any]:
    from tools.bench import stack

    with stack.running(is_demo=False) as here:
        made = subprocess.run(
            [sys.executable, "-m", "tools.bench.cycle"],
            cwd=stack.ROOT, env=here.environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from django.test.runner import DiscoverRunner

    runner = DiscoverRunner(verbosity=0, interactive=False)
    old = runner.setup_databases()
    try:
        found = _turns()
    finally:
        runner.teardown_databases(old)
    json.dump(found, sys.stdout)


def _turns() -> dict[str, Any]:
    from django.db import connection

    from portal.common.clock import db_now
    from portal.fleet.models import Node
    from portal.leases.models import Lease, LeaseRequest, Placement
    from scheduler import cycle

    flavors = make_fleet(db_now(), NODES)
    fill_fleet(flavors, make_teams(db_now()), WAITING, db_now())
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    parts = TurnTimes()
    granted = []
    for _ in range(ROUNDS + WARM_UP):
        now = db_now()
        Node.objects.update(last_seen_at=now)
        _end(GRANTS, now)
        with parts.round():
            turn = cycle.run()
        granted.append(turn.granted)
    return {
        "gpus": sum(NODES.values()) * BOARDS,
        "waiting": LeaseRequest.objects.filter(state="queued").count(),
        "live_leases": Lease.objects.filter(state="active").count(),
        "placements": Placement.objects.filter(is_live=True).count(),
        "granted_per_turn": granted[WARM_UP:],
        **parts.figures(),
    }


class TurnTimes:
    """Wall-clock milliseconds of whole turns and of their parts."""

    def __init__(self) -> None:
        from scheduler import commit, cycle, snapshot

        self.rounds: list[dict[str, float]] = []
        self._now: dict[str, float] = {}
        for module, name in ((snapshot, "take"), (cycle, "plan"), (commit, "grants"), (cycle, "_tell_waits")):
            setattr(module, name, self._timed(name.strip("_"), getattr(module, name)))

    def _timed(self, name: str, call: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._now[name] = self._now.get(name, 0.0) + (time.perf_counter() - began) * 1000

        return timed

    @contextmanager
    def round(self) -> Iterator[None]:
        self._now = {}
        began = time.perf_counter()
        yield
        self.rounds.append(self._now | {"turn": (time.perf_counter() - began) * 1000})

    def figures(self) -> dict[str, Any]:
        """Return the median and the most of each part; the first turn, with tables to build, apart."""
        found: dict[str, Any] = {"first_turn_ms": round(self.rounds[0]["turn"])}
        for name in sorted({name for one in self.rounds for name in one}, reverse=True):
            values = sorted(one.get(name, 0.0) for one in self.rounds[WARM_UP:])
            found[f"{name}_ms"] = {"median": round(values[len(values) // 2], 1), "most": round(values[-1], 1)}
        return found


def make_fleet(now: Any, nodes_of: dict[str, int]) -> dict[str, Any]:
    """Make nodes of each kind, their devices and flavors: whole A100, and three MIG sizes of the H100."""
    from nodeagent.protocol.boards import device_facts
    from portal.catalog.models import Flavor
    from portal.fleet.models import Device, DeviceModel, Node, Profile
    from portal.fleet.services import learn_devices

    for kind, count in nodes_of.items():
        mode = "exclusive" if kind.startswith("a100") else "mig"
        nodes = Node.objects.bulk_create(
            Node(
                name=f"{kind}-{at:04}", created_at=now, last_seen_at=now, enrolled_at=now, rack=f"r{at // 16}"
            )
            for at in range(count)
        )
        learn_devices(nodes[0], device_facts(nodes[0].name, kind, BOARDS, (mode,)), now=now, accepts=True)
        model = DeviceModel.objects.get(slug=kind)
        first = nodes[0].devices.get(index=0)
        Device.objects.bulk_create(
            [
                Device(
                    node=node,
                    uuid=f"GPU-{node.name}-{at}",
                    index=at,
                    model=model,
                    modes=[mode],
                    is_accepted=True,
                    accepted=first.accepted,
                    profiles=first.profiles,
                    last_seen_at=now,
                )
                for node in nodes[1:]
                for at in range(BOARDS)
            ],
            batch_size=BATCH,
        )
    found = {}
    a100, h100 = (DeviceModel.objects.get(slug=kind) for kind in nodes_of)
    found["a100"] = Flavor.objects.create(
        slug="a100", name="A100", device_model=a100, mode="exclusive", share_milli=1000,
        memory_mib=a100.memory_mib, max_count=BOARDS,
    )  # fmt: skip
    for profile in Profile.objects.filter(device_model=h100, name__in=("1g.10gb", "2g.20gb", "3g.40gb")):
        found[profile.name] = Flavor.objects.create(
            slug=profile.name.replace(".", "-"), name=profile.name, device_model=h100, mode="mig",
            profile=profile.name, share_milli=profile.share_milli, memory_mib=profile.memory_mib,
        )  # fmt: skip
    return found


def make_teams(now: Any, count: int = TEAMS) -> list[Any]:
    """Make teams without a ceiling that use more than they are guaranteed, so that only devices are short."""
    from portal.quotas.models import Quota
    from portal.teams.services import create_team

    root = create_team(name="Bench", slug="bench", parent=None, now=now)
    teams = [create_team(name=f"T{at}", slug=f"t{at}", parent=root, now=now) for at in range(count)]
    for team in (root, *teams):
        Quota.objects.create(team=team, guaranteed_milli=0, ceiling_milli=None, used_milli=10**9)
    return teams


def fill_fleet(flavors: dict[str, Any], teams: Sequence[Any], waiting: int, now: Any) -> None:
    """Fill every board with leases of these teams in turn, five people each; let so many requests wait."""
    from portal.accounts.models import User
    from portal.fleet.models import Device
    from portal.leases.models import Lease, LeaseRequest, Placement

    rng = random.Random(7)
    users = User.objects.bulk_create(User(username=f"person-{at}") for at in range(len(teams) * 5))
    boards = list(Device.objects.select_related("model").order_by("node_id", "index"))
    spans = list(_spans(flavors, boards, rng))

    def request(at: int, flavor: Any, count: int, state: str) -> Any:
        seconds = rng.choice((1, 2, 4, 8, 24)) * HOURS
        return LeaseRequest(
            team=teams[at % len(teams)], author=users[at % len(users)], flavor=flavor, count=count,
            duration_s=seconds, remaining_s=seconds, state=state, cost_milli=flavor.share_milli * count,
            quote_micro=0, currency="EUR", submitted_at=now, queued_at=now - timedelta(seconds=waiting - at),
            priority=rng.choice((0, 0, 0, 0, 10, -10)),
        )  # fmt: skip

    asked = LeaseRequest.objects.bulk_create(
        [request(at, flavor, len(held), "granted") for at, (flavor, held) in enumerate(spans)],
        batch_size=BATCH,
    )
    leases = Lease.objects.bulk_create(
        [
            Lease(
                request=row, team=row.team, user=row.author, flavor=row.flavor, node_id=held[0][0].node_id,
                state="active", count=row.count, share_milli=row.cost_milli, cost_milli=row.cost_milli,
                starts_at=now, activated_at=now, not_after=now + timedelta(seconds=rng.randrange(600, 86_400)),
            )
            for row, (_, held) in zip(asked, spans, strict=True)
        ],
        batch_size=BATCH,
    )  # fmt: skip
    Placement.objects.bulk_create(
        [_placement(lease, *one) for lease, (_, held) in zip(leases, spans, strict=True) for one in held],
        batch_size=BATCH,
    )
    kinds = [("a100", n) for n in (1, 1, 1, 1, 2, 2, 4, 8)] + [
        (name, 1) for name in flavors if name != "a100"
    ]
    asked_for = [rng.choice(kinds) for _ in range(waiting)]
    LeaseRequest.objects.bulk_create(
        [request(at, flavors[name], count, "queued") for at, (name, count) in enumerate(asked_for)],
        batch_size=BATCH,
    )


def _spans(flavors: dict[str, Any], boards: Sequence[Any], rng: random.Random) -> Iterator[tuple[Any, Any]]:
    """Yield what each lease holds: its flavor and (board, start, size) triples; every board is full."""
    whole = [board for board in boards if board.model.slug == "a100-80gb"]
    at = 0
    while at < len(whole):
        count = min(rng.choice((1, 1, 1, 2, 4, 8)), BOARDS - at % BOARDS)
        yield flavors["a100"], [(board, 0, board.model.grid) for board in whole[at : at + count]]
        at += count
    for board in boards:
        if board.model.slug == "h100-80gb":
            yield flavors["3g.40gb"], [(board, 0, 4)]
            yield flavors["2g.20gb"], [(board, 4, 2)]
            yield flavors["1g.10gb"], [(board, 6, 1)]


def _placement(lease: Any, board: Any, start: int, size: int) -> Any:
    from psycopg.types.range import Int8Range, TimestamptzRange

    from portal.leases.models import Placement

    return Placement(
        lease=lease, device=board, team_id=lease.team_id, mode=lease.flavor.mode, profile=lease.flavor.profile,
        start=start, size=size, slots=Int8Range(start, start + size), share_milli=lease.flavor.share_milli,
        memory_mib=lease.flavor.memory_mib, period=TimestamptzRange(lease.starts_at, lease.not_after),
    )  # fmt: skip


def _end(count: int, now: Any) -> None:
    """End so many leases, spread over the fleet, at once."""
    from django.db import transaction

    from portal.leases import lifecycle, transitions
    from portal.leases.models import Lease

    live = list(Lease.objects.filter(state="active").values_list("id", flat=True).order_by("?")[:count])
    with transaction.atomic():
        leases = transitions.lock_leases(live)
        lifecycle.end_leases(leases, reason="released", at=now)
        lifecycle.clean_leases(transitions.lock_leases(live), at=now)


if __name__ == "__main__":
    main()
