"""A small installation for tests: people, teams, nodes, flavors, prices, and the steps of a lease.

Every step takes the time it happens at, so that a test can live in any month. What an agent would
report is done through the lifecycle, in a transaction with the leases locked, as the agent's
reports do.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.contrib.auth.hashers import make_password
from django.db import transaction
from django.utils import timezone

from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.uuids import simulated_mig_uuid
from portal.accounts.models import User
from portal.accounts.services import create_token
from portal.catalog.models import Flavor, RateCard
from portal.catalog.services import set_rate, share_of
from portal.fleet.models import DeviceModel, Node
from portal.fleet.services import learn_devices
from portal.leases import lifecycle, transitions
from portal.leases.models import Lease, LeaseRequest, Placement
from portal.leases.requests import RequestSpec, submit_request
from portal.policies.selectors import active_policy
from portal.quotas.models import Quota
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights
from portal.teams.services import add_member, create_team
from scheduler import commit, snapshot
from scheduler.commit_preemptions import preemptions
from scheduler.engine.plan import plan
from tests.portal.kept import Keeper

PASSWORD = "berth-demo"
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
H100, L40S = "h100-80gb", "l40s-48gb"
PRICES = {H100: 3_600_000, L40S: 1_200_000}
FLAVORS = (
    # slug, name, board, mode, profile, share_milli, memory_mib, max_count
    ("h100", "H100 whole", H100, "exclusive", "", 0, 0, 8),
    ("h100-1g-10gb", "H100 slice 10 GB", H100, "mig", "1g.10gb", 0, 0, 7),
    ("h100-3g-40gb", "H100 slice 40 GB", H100, "mig", "3g.40gb", 0, 0, 2),
    ("l40s-quarter", "L40S quarter", L40S, "mps", "", 250, 11_000, 4),
)


@functools.cache
def _password_hash() -> str:
    return make_password(PASSWORD)


def make_user(username: str) -> User:
    """Make a person who can sign in with ``PASSWORD``."""
    return User.objects.create(username=username, display_name=username.title(), password=_password_hash())


def make_node(name: str, board: str, count: int, modes: tuple[str, ...], *, now: datetime) -> Node:
    """Make an enrolled node that was just heard, with ``count`` boards offering ``modes``."""
    node = Node.objects.create(
        name=name,
        created_at=EPOCH,
        enrolled_at=EPOCH,
        epoch=1,
        boot_id="boot-1",
        last_seen_at=now,
        agent_version="0.1.0",
        driver="simulated",
    )
    learn_devices(node, device_facts(name, board, count, modes), now=now)
    return node


def make_flavor(
    slug: str,
    name: str,
    board: str,
    mode: str,
    profile: str = "",
    share: int = 0,
    memory: int = 0,
    most: int = 8,
) -> Flavor:
    """Offer one unit of a board in a mode; share and memory follow from the board."""
    model = DeviceModel.objects.get(slug=board)
    share_milli, memory_mib = share_of(
        model, mode=mode, profile=profile, share_milli=share, memory_mib=memory
    )
    return Flavor.objects.create(
        slug=slug,
        name=name,
        device_model=model,
        mode=mode,
        profile=profile,
        share_milli=share_milli,
        memory_mib=memory_mib,
        max_count=most,
    )


@dataclass
class World:
    """Everything a test can name. alice runs vision, bob is in perception below it, charlie is in language."""

    now: datetime
    teams: dict[str, Team] = field(default_factory=dict)
    people: dict[str, User] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    flavors: dict[str, Flavor] = field(default_factory=dict)

    def user(self, name: str) -> User:
        """Return a person by name."""
        return self.people[name]

    def team(self, slug: str) -> Team:
        """Return a team by slug."""
        return self.teams[slug]

    def rights(self, name: str) -> Rights:
        """Return a person's rights, read afresh."""
        return Rights(self.people[name])

    def token(self, name: str, *scopes: str) -> str:
        """Return the secret of a new API token of a person (default scope: admin)."""
        scopes = scopes or ("admin",)
        made = create_token(
            user=self.people[name], name="test", scopes=list(scopes), days=30, now=timezone.now()
        )
        return made.secret

    def submit(
        self,
        name: str = "bob",
        flavor: str = "h100-1g-10gb",
        *,
        team: str = "",
        duration_s: int = 3600,
        at: datetime | None = None,
        **more: object,
    ) -> LeaseRequest:
        """Let a person ask; the team is their own unless named."""
        slug = team or {"bob": "perception", "alice": "vision", "charlie": "language"}[name]
        spec = RequestSpec(flavor=flavor, duration_s=duration_s, **more)  # type: ignore[arg-type]
        return submit_request(
            team=self.teams[slug],
            actor=self.people[name],
            rights=self.rights(name),
            spec=spec,
            now=at or self.now,
        )

    @transaction.atomic
    def turn(self, at: datetime | None = None) -> list[Lease]:
        """Take one scheduling turn at a given time; returns the leases it granted."""
        now = at or self.now
        policy = active_policy()
        seen = snapshot.take(now=now)
        decided = plan(seen, policy)
        made = commit.grants(decided.grants, policy_version=policy.version, now=now, snapshot=seen)
        made += commit.growth(decided.growth, policy_version=policy.version, now=now, snapshot=seen)
        preemptions(decided, policy, now=now)
        commit.impossible(decided.waits, now=now)
        commit.waits([wait for wait in decided.waits if not wait.is_impossible])
        return made

    @transaction.atomic
    def ready(self, *leases: Lease, at: datetime | None = None) -> None:
        """Do what the agent's report "ready" does: access stored, money clock started."""
        locked = transitions.lock_leases([lease.pk for lease in leases])
        for slot in Placement.objects.filter(lease__in=locked, is_live=True).select_related("device"):
            slot.partition_uuid = simulated_mig_uuid(slot.device.uuid, slot.profile or slot.mode, slot.start)
            slot.access = {"env": {"CUDA_VISIBLE_DEVICES": slot.partition_uuid}, "nodes": []}
            slot.save(update_fields=["partition_uuid", "access"])
        lifecycle.activate_leases(locked, at=at or self.now)

    @transaction.atomic
    def gone(self, *leases: Lease, at: datetime | None = None, active_ms: int | None = None) -> None:
        """Do what the agent's report "gone" does: the slice is clean and the quota free again."""
        if active_ms is not None:
            Lease.objects.filter(pk__in=[lease.pk for lease in leases]).update(agent_active_ms=active_ms)
        lifecycle.clean_leases(transitions.lock_leases([lease.pk for lease in leases]), at=at or self.now)

    def active(
        self, name: str = "bob", flavor: str = "h100-1g-10gb", *, at: datetime | None = None, **more: object
    ) -> Lease:
        """Return a lease that is active since ``at``."""
        request = self.submit(name, flavor, at=at, **more)  # type: ignore[arg-type]
        self.turn(at)
        lease = Lease.objects.get(request=request)
        self.ready(lease, at=at)
        lease.refresh_from_db()
        return lease

    def ended(
        self,
        name: str = "bob",
        flavor: str = "h100-1g-10gb",
        *,
        seconds: int = 600,
        at: datetime | None = None,
        **more: object,
    ) -> Lease:
        """Return a lease that ran ``seconds`` from ``at``, was released by its holder and is clean."""
        begin = at or self.now - timedelta(seconds=seconds)
        lease = self.active(name, flavor, at=begin, **more)
        end = begin + timedelta(seconds=seconds)
        lifecycle.release_lease(lease=lease, actor=self.people[name], now=end)
        self.gone(lease, at=end, active_ms=seconds * 1000)
        lease.refresh_from_db()
        return lease


def build_world(now: datetime | None = None) -> World:
    """Return a whole small installation: 8 x H100 (MIG and whole), 4 x L40S (shares), four flavors with prices."""
    return _worlds.world(now or timezone.now().replace(microsecond=0))


def _build(now: datetime) -> World:
    world = World(now=now)
    _people(world)
    _fleet(world)
    _prices()
    for slug, name, board, mode, profile, share, memory, most in FLAVORS:
        world.flavors[slug] = make_flavor(slug, name, board, mode, profile, share, memory, most)
    return world


def _people(world: World) -> None:
    tree = (
        ("northwind", "Northwind Labs", "", 16_000),
        ("vision", "Vision", "northwind", 8_000),
        ("perception", "Perception", "vision", None),
        ("segmentation", "Segmentation", "vision", None),
        ("language", "Language", "northwind", 8_000),
        ("speech", "Speech", "language", None),
        ("robotics", "Robotics", "northwind", 4_000),
    )
    for slug, name, parent, ceiling in tree:
        team = create_team(
            name=name, slug=slug, parent=world.teams.get(parent), now=EPOCH, cost_centre=f"CC-{slug}"
        )
        world.teams[slug] = team
        Quota.objects.create(team=team, guaranteed_milli=(ceiling or 0) // 2, ceiling_milli=ceiling)
    held = (
        ("alice", "vision", Role.ADMIN),
        ("bob", "perception", Role.RESEARCHER),
        ("charlie", "language", Role.RESEARCHER),
        ("approver", "northwind", Role.APPROVER),
        ("finance", "northwind", Role.FINANCE),
        ("operator", "northwind", Role.OPERATOR),
    )
    for name, slug, role in held:
        world.people[name] = make_user(name)
        add_member(team=world.teams[slug], user=world.people[name], role=role, now=EPOCH)


def _fleet(world: World) -> None:
    world.nodes["gpu-01"] = make_node("gpu-01", H100, 8, ("exclusive", "mig"), now=world.now)
    world.nodes["gpu-03"] = make_node("gpu-03", L40S, 4, ("exclusive", "mps", "memlimit"), now=world.now)


def _prices() -> None:
    RateCard.objects.create(name="Standard", currency="EUR", is_default=True)
    for board, price in PRICES.items():
        model = DeviceModel.objects.get(slug=board)
        set_rate(model=model, micro_per_hour=price, starts_at=EPOCH, actor=None, now=EPOCH)


_worlds = Keeper(_build)
