"""One lease's way through the portal in one process: queries and CPU of each stage, no network, no waiting.

``python -m tools.bench.stages`` wants DATABASE_URL and REDIS_URL of servers it may make a database on;
figures by CPU time stay comparable while other work runs on the machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

WARM_UP, ROUNDS, AT_ONCE = 5, 40, 8
STAGES = ("submit", "turn", "desired", "ready", "release", "gone", "meter")


def measure() -> dict[str, Any]:
    import subprocess

    from tools.bench import stack

    with stack.running(is_demo=False) as here:
        command = [sys.executable, "-m", "tools.bench.stages"]
        made = subprocess.run(
            command, cwd=stack.ROOT, env=here.environment(), capture_output=True, text=True, check=True
        )
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
        found = _walk()
    finally:
        runner.teardown_databases(old)
    json.dump(found, sys.stdout)


class Meter:
    """CPU milliseconds and queries by stage, for one and for several leases at once."""

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.queries: dict[str, list[int]] = defaultdict(list)
        self._count = 0

    def counting(self, execute: Callable[..., Any], *rest: Any) -> Any:
        self._count += 1
        return execute(*rest)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._count, began = 0, time.thread_time()
        yield
        self.cpu[name].append((time.thread_time() - began) * 1000)
        self.queries[name].append(self._count)

    def row(self) -> dict[str, dict[str, float]]:
        """Return the medians after warming up."""
        return {
            name: {
                "cpu_ms": round(sorted(self.cpu[name][WARM_UP:])[len(self.cpu[name][WARM_UP:]) // 2], 2),
                "queries": sorted(self.queries[name][WARM_UP:])[len(self.queries[name][WARM_UP:]) // 2],
            }
            for name in STAGES
        }


def _walk() -> dict[str, Any]:
    from django.db import connection

    from portal.common.clock import db_now
    from tools.bench import fleet

    made = fleet.prepare(db_now())
    found = {}
    for count in (1, AT_ONCE):
        meter, walker = Meter(), Walker(made)
        with connection.execute_wrapper(meter.counting):
            for _ in range(WARM_UP + ROUNDS):
                walker.walk(meter, count)
        found[f"{count} at once"] = meter.row()
    return {name: {s: f"{r['cpu_ms']} ms, {r['queries']} queries" for s, r in rows.items()}
            for name, rows in found.items()}  # fmt: skip


class Walker:
    """A client and an agent in this process."""

    seq = 0

    def __init__(self, made: dict[str, Any]) -> None:
        from django.test import Client

        from portal.fleet.models import Node

        self._client = Client(headers={"Authorization": f"Bearer {made['token']}"})
        self._body = {"flavor": made["flavor"], "team": made["team"], "duration_s": 600}
        self._node = Node.objects.get(name=fleet_nodes()[0])
        Node.objects.exclude(pk=self._node.pk).update(is_cordoned=True)

    def walk(self, meter: Meter, count: int) -> None:
        """Take ``count`` leases from request to bill."""
        from portal.agents.desired import desired_state
        from portal.billing.metering import meter_all
        from portal.common.clock import db_now
        from portal.fleet.models import Node
        from portal.leases.models import Lease
        from scheduler import cycle

        Node.objects.update(last_seen_at=db_now())
        for _ in range(count):
            with meter.stage("submit"):
                self._post("/api/v1/requests/", self._body, 201)
        with meter.stage("turn"):
            cycle.run()
        with meter.stage("desired"):
            wanted = desired_state(self._node.pk, now=db_now())
        with meter.stage("ready"):
            self._report("ready", wanted)
        for uid in Lease.objects.filter(state="active").values_list("uid", flat=True):
            with meter.stage("release"):
                self._post(f"/api/v1/leases/{uid}/release/", {}, 200)
        with meter.stage("gone"):
            self._report("gone", wanted)
        with meter.stage("meter"):
            meter_all(now=db_now())

    def _post(self, path: str, body: dict[str, Any], status: int) -> None:
        answer = self._client.post(path, json.dumps(body), content_type="application/json")
        assert answer.status_code == status, answer.content

    def _report(self, phase: str, wanted: Any) -> None:
        from nodeagent.protocol.messages import LeaseReport, PartitionFact, Report, SlotAccess
        from portal.agents.reports import accept_report
        from portal.fleet.models import Node

        Walker.seq += 1
        node = Node.objects.get(pk=self._node.pk)
        is_ready = phase == "ready"
        leases = tuple(
            LeaseReport(
                lease=w.lease,
                generation=w.generation,
                phase=phase,
                access=tuple(
                    SlotAccess(s.device, s.start, s.device, {"CUDA_VISIBLE_DEVICES": s.device}, ())
                    for s in w.slots
                )
                if is_ready
                else (),
                code="",
                detail="",
                active_ms=None if is_ready else 5,
                reason="",
            )
            for w in wanted.leases
        )
        partitions = tuple(
            PartitionFact(s.device, s.device, "", s.start, s.size, w.lease)
            for w in wanted.leases
            for s in w.slots
        )
        accept_report(
            node.pk,
            Report(
                epoch=node.epoch,
                boot_id="boot",
                seq=Walker.seq,
                revision=node.desired_revision,
                leases=leases,
                partitions=partitions if is_ready else (),
                health=(),
            ),
        )


def fleet_nodes() -> tuple[str, ...]:
    from tools.bench import fleet

    return fleet.NODES


if __name__ == "__main__":
    main()
