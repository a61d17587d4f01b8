"""A cluster on which leases live, so that some of them may have to go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from scheduler.engine import plan
from scheduler.engine.model import Held, Plan, Running, Snapshot
from tests.engine.builder import NOON, Cluster

SECOND = timedelta(seconds=1)


@dataclass
class Stage(Cluster):
    """Adds leases to a cluster: the n-th has id 100 + n, and its request 1000 + n."""

    running: list[Running] = field(default_factory=list)

    def lease(
        self,
        *places: tuple[int, str, int],
        team: str = "vision",
        ran_s: int = 3600,
        hours: float = 5,
        **more: object,
    ) -> int:
        """Let a lease live on these (device, flavor, start); returns its id. ``more``: fields of Running."""
        lease_id = 100 + len(self.running)
        first = len(self.held)
        for device_id, flavor, start in places:
            self.hold(device_id, flavor, start, team=team, hours=hours, lease=lease_id)
        mine = [held for held in self.held[first:] if not held.is_host]
        cost = sum(-(-held.share_milli * self.devices[held.device_id].weight_milli // 1000) for held in mine)
        figures = {
            "claim_id": 1000 + len(self.running),
            "user_id": 1,
            "node_id": self.devices[places[0][0]].node_id,
            "started_at": NOON - ran_s * SECOND,
            "until": NOON + timedelta(hours=hours),
            "cost_milli": cost,
            "count": len(mine),
            **more,
        }
        self.running.append(Running(lease_id=lease_id, team_id=self.team_id(team), **figures))  # type: ignore[arg-type]
        self.use(team, cost)
        return lease_id

    def use(self, team: str, cost: int) -> None:
        """Count use for a team and everything above it."""
        here: int | None = self.team_id(team)
        by_id = {q.team_id: name for name, q in self.quotas.items()}
        while here is not None:
            quota = self.quotas[by_id[here]]
            self.quotas[by_id[here]] = replace(quota, used_milli=quota.used_milli + cost)
            here = quota.parent_id

    def share(self, name: str, guaranteed: int, *, lending: int | None = None) -> None:
        """Give a team a guarantee in cohort 1, without a ceiling."""
        self.team_id(name)
        self.quotas[name] = replace(
            self.quotas[name], guaranteed_milli=guaranteed, lending_milli=lending, cohort_id=1
        )

    def tell(self, lease_id: int, claim_id: int, *, in_s: int = 60) -> None:
        """Let a lease know that it must go for a claim."""
        at = NOON + in_s * SECOND
        self.running = [
            replace(one, preempt_at=at, preempted_for=claim_id) if one.lease_id == lease_id else one
            for one in self.running
        ]
        self.held = [replace(h, until=at) if h.lease_id == lease_id else h for h in self.held]

    def end(self, lease_id: int) -> None:
        """Let a lease be gone and clean."""
        one = next(one for one in self.running if one.lease_id == lease_id)
        self.running.remove(one)
        self.held = without(self.held, lease_id)
        team = next(name for name, q in self.quotas.items() if q.team_id == one.team_id)
        self.use(team, -one.cost_milli)

    def snapshot(self) -> Snapshot:
        """The picture of noon with everything that lives."""
        return replace(super().snapshot(), running=tuple(self.running))

    def told(self) -> dict[int, tuple[int, str]]:
        """Who is told to go in a turn: lease id to (claim id, why)."""
        return {one.lease_id: (one.claim_id, one.why) for one in self.turn().preemptions}

    @staticmethod
    def told_by(stage: Stage) -> dict[int, str]:
        """Who is told to go on a stage, and why."""
        return {one.lease_id: one.why for one in stage.turn().preemptions}

    def turn(self) -> Plan:
        """One turn, as the engine gives it."""
        return plan(self.snapshot(), self.policy)


def without(held: list[Held], lease_id: int) -> list[Held]:
    """What is held without a lease; a host placement goes with its last share."""
    left = [h for h in held if h.lease_id != lease_id]
    lives = {h.device_id for h in left if not h.is_host}
    return [h for h in left if not h.is_host or h.device_id in lives]
