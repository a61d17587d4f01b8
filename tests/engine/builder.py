"""A small cluster in words: nodes, what they hold, teams, and the claims that wait."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from nodeagent.protocol.boards import BoardModel, board
from scheduler.engine import counter_offers, forecast, free_units, plan
from scheduler.engine.model import (
    Claim,
    DeviceInfo,
    Forecast,
    Grant,
    Held,
    MigProfile,
    NodeInfo,
    Plan,
    PolicyRules,
    Reason,
    Snapshot,
    TeamQuota,
    Wait,
)

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
HOUR = 3600


def share_of(part: int | None, whole: int | None) -> int:
    """A fraction in thousandths, rounded up; 0 where a figure is unknown."""
    return -(-part * 1000 // whole) if part and whole else 0


def profiles_of(kind: BoardModel, names: tuple[str, ...] = ()) -> tuple[MigProfile, ...]:
    """The profiles of a board in the table, as the engine sees them."""
    return tuple(
        MigProfile(
            p.name,
            p.memory_slices,
            p.starts,
            max(
                share_of(p.sm_count, kind.sm_total),
                share_of(p.memory_mib, kind.memory_mib),
                share_of(p.memory_slices, kind.memory_slices),
            ),
            p.memory_mib or 0,
            p.max_instances,
        )
        for p in kind.profiles
        if not names or p.name in names
    )


def device(model: str = "h100-80gb", names: tuple[str, ...] = (), **more: object) -> DeviceInfo:
    """One device on node 1."""
    kind = board(model)
    figures = {
        "id": 1,
        "node_id": 1,
        "model": model,
        "grid": kind.memory_slices,
        "memory_mib": kind.memory_mib or 0,
        "weight_milli": 1000,
        "modes": frozenset(kind.modes),
        "profiles": profiles_of(kind, names),
        "max_clients": kind.max_clients,
        **more,
    }
    return DeviceInfo(**figures)  # type: ignore[arg-type]


@dataclass
class Turn:
    """What one turn decided, by the names of the requests."""

    grants: dict[str, Grant]
    waits: dict[str, Wait]
    node_names: dict[int, str]

    def code(self, name: str) -> str:
        """The main reason of a waiting request."""
        return self.waits[name].reasons[0].code

    def codes(self, name: str) -> list[str]:
        """All reasons of a waiting request, the main one first."""
        return [reason.code for reason in self.waits[name].reasons]

    def reason(self, name: str, code: str) -> Reason:
        """One reason of a waiting request."""
        return next(reason for reason in self.waits[name].reasons if reason.code == code)

    def node(self, name: str) -> str:
        """The node a request got."""
        return self.node_names[self.grants[name].node_id]

    def places(self, name: str) -> list[tuple[int, int]]:
        """The (device, start) pairs a request got."""
        return [(slot.device_id, slot.start) for slot in self.grants[name].slots]


@dataclass
class NodeWords:
    """What can be said about the node just added."""

    cluster: Cluster
    devices: list[int]

    def layout(self, *positions: tuple[str, int]) -> NodeWords:
        """Pin the positions of every device of the node."""
        self._change(layout=tuple(positions))
        return self

    def domains(self, *names: str) -> NodeWords:
        """Say which link domain each device is in."""
        for device_id, name in zip(self.devices, names, strict=True):
            self.cluster.change(device_id, domain=name)
        return self

    def hold(
        self,
        index: int,
        flavor: str = "whole",
        start: int = 0,
        *,
        team: str = "vision",
        hours: float = 1,
        lease: int | None = -1,
        **more: int,
    ) -> NodeWords:
        """Put a live placement on a device; shares open their host placement. ``more``: CPU and memory."""
        self.cluster.hold(self.devices[index], flavor, start, team=team, hours=hours, lease=lease)
        self.cluster.held[-1] = replace(self.cluster.held[-1], **more)
        return self

    def _change(self, **more: object) -> None:
        for device_id in self.devices:
            self.cluster.change(device_id, **more)


@dataclass
class Cluster:
    """Nodes, teams, live placements and a queue; ``plan`` and its siblings ask the engine about them."""

    policy: PolicyRules = field(default_factory=PolicyRules)
    nodes: list[NodeInfo] = field(default_factory=list)
    devices: dict[int, DeviceInfo] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    queue: list[Claim] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    quotas: dict[str, TeamQuota] = field(default_factory=dict)

    def node(
        self,
        name: str,
        model: str = "h100-80gb",
        devices: int = 1,
        *,
        blocked: str = "",
        profiles: tuple[str, ...] = (),
        host: dict[str, Any] | None = None,
        **more: object,
    ) -> NodeWords:
        """Add a node with equal devices; ``host`` says more of the node, such as its CPU."""
        node_id = len(self.nodes) + 1
        self.nodes.append(NodeInfo(node_id, name, blocked, **(host or {})))
        ids = []
        for index in range(devices):
            device_id = len(self.devices) + 1
            self.devices[device_id] = device(
                model, profiles, id=device_id, node_id=node_id, index=index, **more
            )
            ids.append(device_id)
        return NodeWords(self, ids)

    def change(self, device_id: int, **more: object) -> None:
        """Change figures of one device."""
        was = self.devices[device_id]
        figures = {name: getattr(was, name) for name in DeviceInfo.__dataclass_fields__}
        self.devices[device_id] = DeviceInfo(**{**figures, **more})  # type: ignore[arg-type]

    def team(
        self, name: str, *, ceiling: int | None = None, used: int = 0, parent: str | None = None
    ) -> None:
        """Add a team, or say what its quota is."""
        parent_id = self.team_id(parent) if parent else None
        self.quotas[name] = TeamQuota(self.team_id(name), parent_id, ceiling, used, name)

    def team_id(self, name: str) -> int:
        """The id of a team; a team not named before has no ceiling."""
        if name not in self.quotas:
            self.quotas[name] = TeamQuota(len(self.quotas) + 1, None, None, 0, name)
        return self.quotas[name].team_id

    def request(
        self,
        name: str,
        flavor: str = "whole",
        count: int = 1,
        *,
        team: str = "vision",
        hours: float = 1,
        priority: int = 0,
        models: tuple[str, ...] = (),
        queued_s: int | None = None,
        **more: object,
    ) -> Claim:
        """Let a request wait, behind those already waiting."""
        claim_id = len(self.names) + 1
        self.names[claim_id] = name
        claim = self.claim(
            claim_id, flavor, count, team=team, hours=hours, priority=priority, models=models, **more
        )
        figures = {field: getattr(claim, field) for field in Claim.__dataclass_fields__}
        figures["queued_at"] = NOON + timedelta(seconds=claim_id if queued_s is None else queued_s)
        self.queue.append(Claim(**figures))
        return self.queue[-1]

    def claim(
        self,
        claim_id: int,
        flavor: str = "whole",
        count: int = 1,
        *,
        team: str = "vision",
        hours: float = 1,
        priority: int = 0,
        models: tuple[str, ...] = (),
        **more: object,
    ) -> Claim:
        """A claim in words: "whole", a profile, or "mps 500 8000" (share and MiB)."""
        figures: dict[str, object] = {
            "id": claim_id,
            "team_id": self.team_id(team),
            "count": count,
            "duration_s": int(hours * HOUR),
            "priority": priority,
            "queued_at": NOON + timedelta(hours=1),
            "models": frozenset(models),
            **wants(flavor),
            **more,
        }
        return Claim(**figures)  # type: ignore[arg-type]

    def hold(
        self, device_id: int, flavor: str, start: int, *, team: str, hours: float, lease: int | None
    ) -> None:
        """Put a live placement on a device."""
        want = wants(flavor)
        until = NOON + timedelta(hours=hours)
        where, team_id = self.devices[device_id], self.team_id(team)
        lease_id = 100 + len(self.held) if lease == -1 else lease
        mode = want["mode"]
        profile = next((p for p in where.profiles if p.name == want.get("profile")), None)
        if profile is not None:
            self.held.append(
                Held(device_id, start, profile.slices, "mig", team_id, lease_id, until,
                     profile.share_milli, profile.memory_mib, False, profile.name)
            )  # fmt: skip
        elif mode == "exclusive":
            self.held.append(Held(device_id, 0, where.grid, "exclusive", team_id, lease_id, until, 1000))
        else:
            self._share(where, want, team_id, lease_id, until)

    def _share(
        self, where: DeviceInfo, want: dict[str, object], team_id: int, lease_id: int | None, until: datetime
    ) -> None:
        mode = want["mode"]
        if not any(h.is_host and h.device_id == where.id for h in self.held):
            self.held.append(
                Held(where.id, 0, where.grid, mode, team_id, None, until, 1000, where.memory_mib, True)  # type: ignore[arg-type]
            )
        self.held.append(
            Held(where.id, 0, 0, mode, team_id, lease_id, until, want["share_milli"], want["memory_mib"])  # type: ignore[arg-type]
        )

    def snapshot(self) -> Snapshot:
        """The picture a turn would take at noon."""
        return Snapshot(
            NOON,
            tuple(self.nodes),
            tuple(self.devices.values()),
            tuple(self.held),
            tuple(self.queue),
            tuple(self.quotas.values()),
        )

    def decided(self) -> Plan:
        """Decide one turn; the plan as the engine gives it."""
        return plan(self.snapshot(), self.policy)

    def plan(self) -> Turn:
        """Decide one turn."""
        found = self.decided()
        return Turn(
            {self.names[g.claim_id]: g for g in found.grants},
            {self.names[w.claim_id]: w for w in found.waits},
            {node.id: node.name for node in self.nodes},
        )

    def forecast(self, *claims: Claim, hours: int = 24) -> dict[int, Forecast]:
        """When claims would start."""
        return forecast(self.snapshot(), self.policy, claims, horizon_s=hours * HOUR)

    def start_of(self, claim: Claim, hours: int = 24) -> float | None:
        """Hours from noon until a claim would start."""
        at = self.forecast(claim, hours=hours)[claim.id].starts_at
        return None if at is None else (at - NOON) / timedelta(hours=1)

    def offers(self, claim: Claim, *others: Claim) -> list[int]:
        """The ids of the counter-offers, the soonest first."""
        _, changes = counter_offers(self.snapshot(), self.policy, claim, others)
        return [change.claim.id for change in changes]

    def free(self, flavor: str, count: int = 1, team: str = "vision", **more: object) -> int:
        """How many such claims could start together now."""
        return free_units(self.snapshot(), self.claim(-1, flavor, count, team=team, **more), self.policy)


def wants(flavor: str) -> dict[str, object]:
    """Mode and sizes of a flavor in words."""
    if flavor == "whole":
        return {"mode": "exclusive"}
    if " " in flavor:
        mode, share, memory = flavor.split()
        return {"mode": mode, "share_milli": int(share), "memory_mib": int(memory)}
    return {"mode": "mig", "profile": flavor}
