"""The demo organisation: teams, people, fleet, flavors, prices. Every function is safe to repeat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.contrib.auth.hashers import make_password
from psycopg.types.range import TimestamptzRange

from nodeagent.protocol.boards import device_facts
from portal.accounts.models import User
from portal.billing.periods import month_bounds
from portal.budgets.models import (
    AtZero,
    BudgetAction,
    BudgetThreshold,
    MovementKind,
    SpendBasis,
    TeamBudget,
)
from portal.budgets.periods import month_start
from portal.budgets.wallets import move_by_hand, open_wallet
from portal.catalog.models import Flavor, Rate, RateCard
from portal.catalog.services import share_of
from portal.fleet.models import Device, DeviceModel, HealthEvent, Layout, Node
from portal.fleet.services import learn_devices
from portal.policies.models import Policy
from portal.quotas.models import Quota
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights
from portal.teams.services import add_member, create_team

PASSWORD = "berth-demo"  # noqa: S105 (printed by the demo for everybody to use)


@dataclass(frozen=True, slots=True)
class DemoTeam:
    """A team of the demo; quota in weighted thousandths of a reference GPU."""

    slug: str
    name: str
    parent: str | None
    guaranteed: int
    ceiling: int | None
    cost_centre: str = ""
    budget: int | None = None
    approval_gpu_hours: int | None = None


TEAMS = (
    DemoTeam("northwind", "Northwind Labs", None, 0, None, "NW-000"),
    DemoTeam("vision", "Vision", "northwind", 8_000, 24_000, "NW-110", 7_500, 400),
    DemoTeam("perception", "Perception", "vision", 4_000, 20_000, "NW-111", 3_000, 400),
    DemoTeam("segmentation", "Segmentation", "vision", 2_000, 8_000, "NW-112", 2_500, 200),
    DemoTeam("language", "Language", "northwind", 8_000, 24_000, "NW-120", 8_000, 400),
    DemoTeam("speech", "Speech", "language", 2_000, 6_000, "NW-121", 1_200, 200),
    DemoTeam("robotics", "Robotics", "northwind", 2_000, 1_500 + 1_000, "NW-130", 900, 100),
    DemoTeam("grasping", "Grasping", "robotics", 500, 2_500, "NW-131", 500, 100),
)
PEOPLE = (
    ("bob", "Bob", (("perception", Role.RESEARCHER), ("segmentation", Role.RESEARCHER))),
    ("alice", "Alice", (("vision", Role.ADMIN),)),
    ("charlie", "Charlie", (("language", Role.RESEARCHER), ("robotics", Role.RESEARCHER))),
    ("approver", "Approver", (("northwind", Role.APPROVER),)),
    ("finance", "Finance", (("northwind", Role.FINANCE),)),
    # Decides what finance proposes: nobody decides a note of their own.
    ("controller", "Controller", (("northwind", Role.FINANCE),)),
    ("operator", "Operator", (("northwind", Role.OPERATOR),)),
)


@dataclass(frozen=True, slots=True)
class DemoDevices:
    """Devices of one node: which board, how many, what they offer."""

    node: str
    board: str
    name: str
    count: int
    modes: tuple[str, ...]
    weight: int
    price_cents: int
    earlier_cents: int


FLEET = (
    DemoDevices("gpu-01", "h100-80gb", "NVIDIA H100 80GB", 8, ("mig", "exclusive"), 2000, 290, 320),
    DemoDevices("gpu-02", "a100-80gb", "NVIDIA A100 80GB", 8, ("mig", "exclusive"), 1000, 165, 165),
    DemoDevices("gpu-03", "l40s-48gb", "NVIDIA L40S", 8, ("mps", "memlimit"), 700, 98, 110),
    DemoDevices("gpu-04", "hygon-dcu-64gb", "Hygon DCU K100", 8, ("memlimit",), 600, 72, 72),
    # A second node of one model: what runs on several nodes at once can run here.
    DemoDevices("gpu-05", "a100-80gb", "NVIDIA A100 80GB", 4, ("exclusive",), 1000, 165, 165),
)
PINNED = (
    (0, (("3g.40gb", 4), ("2g.20gb", 2), ("1g.10gb", 0), ("1g.10gb", 1))),
    (1, (("4g.40gb", 0), ("3g.40gb", 4))),
    (2, tuple(("1g.10gb", n) for n in range(7))),
    (3, (("2g.20gb", 0), ("2g.20gb", 2), ("2g.20gb", 4), ("1g.10gb", 6))),
)
# What those pay of the price, in thousandths, who let others preempt their lease.
PREEMPTIBLE_MILLI = {"h100": 600, "a100": 600}
# slug, name, Chinese name, board, mode, profile, share, memory, most at once
FLAVORS = (
    ("h100-1g", "H100 slice 1g.10gb", "H100 切片 1g.10gb", "h100-80gb", "mig", "1g.10gb", 0, 0, 4),
    ("h100-1g-20gb", "H100 slice 1g.20gb", "H100 切片 1g.20gb", "h100-80gb", "mig", "1g.20gb", 0, 0, 4),
    ("h100-2g", "H100 slice 2g.20gb", "H100 切片 2g.20gb", "h100-80gb", "mig", "2g.20gb", 0, 0, 4),
    ("h100-3g", "H100 slice 3g.40gb", "H100 切片 3g.40gb", "h100-80gb", "mig", "3g.40gb", 0, 0, 4),
    ("h100", "Whole H100", "整张 H100", "h100-80gb", "exclusive", "", 0, 0, 8),
    ("a100-1g", "A100 slice 1g.10gb", "A100 切片 1g.10gb", "a100-80gb", "mig", "1g.10gb", 0, 0, 4),
    ("a100-2g", "A100 slice 2g.20gb", "A100 切片 2g.20gb", "a100-80gb", "mig", "2g.20gb", 0, 0, 4),
    ("a100-3g", "A100 slice 3g.40gb", "A100 切片 3g.40gb", "a100-80gb", "mig", "3g.40gb", 0, 0, 2),
    ("a100", "Whole A100", "整张 A100", "a100-80gb", "exclusive", "", 0, 0, 4),
    ("l40s-12gb", "L40S share 12 GB", "L40S 共享 12 GB", "l40s-48gb", "memlimit", "", 250, 11_516, 4),
    ("l40s-24gb", "L40S share 24 GB", "L40S 共享 24 GB", "l40s-48gb", "memlimit", "", 500, 23_033, 4),
    ("l40s-mps", "L40S quarter, MPS", "L40S 四分之一（MPS）", "l40s-48gb", "mps", "", 250, 11_000, 4),
    ("dcu-16gb", "DCU share 16 GB", "DCU 共享 16 GB", "hygon-dcu-64gb", "memlimit", "", 250, 16_384, 4),
    ("dcu-32gb", "DCU share 32 GB", "DCU 共享 32 GB", "hygon-dcu-64gb", "memlimit", "", 500, 32_768, 4),
)
CENT = 10_000


def make_teams(now: datetime) -> dict[str, Team]:
    """Return the demo teams by slug, with their quotas."""
    found = {team.slug: team for team in Team.objects.all()}
    for spec in TEAMS:
        if spec.slug in found:
            continue
        parent = found[spec.parent] if spec.parent else None
        team = create_team(
            name=spec.name, slug=spec.slug, parent=parent, now=now, cost_centre=spec.cost_centre
        )
        hours = spec.approval_gpu_hours
        team.approval_above_gpu_seconds = hours * 3600 if hours else None
        team.save(update_fields=["approval_above_gpu_seconds"])
        if spec.budget:
            _make_budget(team, spec.budget * 100 * CENT, now)
        Quota.objects.create(team=team, guaranteed_milli=spec.guaranteed, ceiling_milli=spec.ceiling)
        found[spec.slug] = team
    return found


def _make_budget(team: Team, amount_micro: int, now: datetime) -> None:
    """Give a team so much a month from now on: word at 80 % and once the forecast is above it, an end at 150 %."""
    budget = TeamBudget.objects.create(
        team=team, amount_micro=amount_micro, starts_on=month_start(now), created_at=now
    )
    BudgetThreshold.objects.bulk_create(
        BudgetThreshold(budget=budget, percent=percent, action=action, basis=basis)
        for percent, action, basis in (
            (80, BudgetAction.NOTIFY, SpendBasis.ACTUAL),
            (100, BudgetAction.NOTIFY, SpendBasis.FORECAST),
            (150, BudgetAction.BLOCK, SpendBasis.ACTUAL),
        )
    )


def make_wallet(team: Team, finance: User, now: datetime) -> None:
    """Let a team pay in advance from now on; what it starts next is held for."""
    rights = Rights(finance)
    open_wallet(team=team, actor=finance, rights=rights, at_zero=AtZero.PREEMPTIBLE, now=now)
    move_by_hand(
        team=team, actor=finance, rights=rights, kind=MovementKind.TOP_UP, amount_micro=900 * 100 * CENT,
        reference="Transfer NW-130/11", now=now,
    )  # fmt: skip


def make_people(teams: dict[str, Team], now: datetime) -> dict[str, User]:
    """Return the demo people by name; all share one password, which the demo prints."""
    found: dict[str, User] = {}
    hashed = make_password(PASSWORD)  # one hash for all: it is public anyway, and Argon2 takes its time
    for username, shown, roles in PEOPLE:
        user = User.objects.filter(username=username).first()
        if user is None:
            user = User(
                username=username, display_name=shown, email=f"{username}@northwind.example", is_demo=True
            )
            user.password = hashed
            user.save()
        for slug, role in roles:
            add_member(team=teams[slug], user=user, role=role, now=now)
        found[username] = user
    return found


def make_fleet(now: datetime) -> None:
    """Make the nodes and devices that the simulated agents will report, with pinned layouts on gpu-02."""
    for spec in FLEET:
        node, _created = Node.objects.get_or_create(
            name=spec.node, defaults={"created_at": now, "site": "Hall A"}
        )
        learn_devices(
            node, device_facts(spec.node, spec.board, spec.count, spec.modes), now=now, accepts=True
        )
        DeviceModel.objects.filter(slug=spec.board).update(name=spec.name, weight_milli=spec.weight)
    for index, positions in PINNED:
        device = Device.objects.get(node__name="gpu-02", index=index)
        Device.objects.filter(pk=device.pk).update(modes=["mig"])
        Layout.objects.get_or_create(device=device, defaults={"positions": positions, "created_at": now})
    Device.objects.filter(node__name="gpu-02", index__gte=len(PINNED)).update(modes=["exclusive"])


def make_health_event(now: datetime) -> None:
    """Quarantine one device for remapped memory rows, so that the operator has something to clear."""
    device = Device.objects.get(node__name="gpu-04", index=7)
    _event, created = HealthEvent.objects.get_or_create(
        node=device.node,
        device=device,
        code="row-remap-failure",
        defaults={
            "severity": "critical",
            "detail": "A memory row could not be remapped; the device needs service.",
            "at": now - timedelta(hours=5),
        },
    )
    if created:
        Device.objects.filter(pk=device.pk).update(
            health="quarantined", health_reason="A memory row could not be remapped"
        )


def make_catalogue(now: datetime) -> None:
    """Make rate card, dated prices and flavors; prices of some boards fell at the start of this month."""
    card, _created = RateCard.objects.get_or_create(
        name="Standard", defaults={"currency": "EUR", "is_default": True}
    )
    this_month = month_bounds(now)[0]
    long_ago = this_month - timedelta(days=400)
    for spec in FLEET:
        model = DeviceModel.objects.get(slug=spec.board)
        if not Rate.objects.filter(card=card, device_model=model).exists():
            for cents, begin, end in (
                (spec.earlier_cents, long_ago, this_month),
                (spec.price_cents, this_month, None),
            ):
                Rate.objects.create(
                    card=card,
                    device_model=model,
                    micro_per_hour=cents * CENT,
                    valid=TimestamptzRange(begin, end),
                    created_at=now,
                )
    for position, (slug, name, name_zh, board, mode, profile, share, memory, most) in enumerate(FLAVORS):
        model = DeviceModel.objects.get(slug=board)
        share_milli, memory_mib = share_of(
            model, mode=mode, profile=profile, share_milli=share, memory_mib=memory
        )
        Flavor.objects.get_or_create(
            slug=slug,
            defaults={
                "name": name,
                "name_zh": name_zh,
                "device_model": model,
                "mode": mode,
                "profile": profile,
                "share_milli": share_milli,
                "memory_mib": memory_mib,
                "max_count": most,
                "preemptible_milli": PREEMPTIBLE_MILLI.get(slug, 1000),
                "position": position * 10,
            },
        )
    Policy.objects.get_or_create(
        version=1,
        defaults={
            "name": "default",
            "is_active": True,
            "created_at": now,
            "activated_at": now,
            "body": {"order": "priority_fifo", "place": "default"},
        },
    )
