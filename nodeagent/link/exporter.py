"""The agent's page for Prometheus: its devices under DCGM's names, and how the agent itself does.

Off unless an address is given. A scrape reads the devices where nobody did in the last moments, so a page that nobody
asks for costs nothing, and goes on where the portal is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import ThreadingHTTPServer
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import GaugeMetricFamily, Metric

from nodeagent import __version__
from nodeagent.drivers.base import DriverReading
from nodeagent.link.node_work import NodeWork
from nodeagent.protocol.dcgm_fields import FIELDS, LABELS, XID, figures
from nodeagent.protocol.messages import DeviceSample
from nodeagent.reconcile.lease_records import NS, READY, LeasePlace, LeaseRecord

log = logging.getLogger(__name__)

ANSWER_WITHIN_S: Final = 5.0
# The connection to the portal reads once a second; a scrape takes what that read.
FRESH_NS: Final = 3 * NS // 2
HOST_FAMILIES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = MappingProxyType({
    "berth_agent_info": ("Version and driver of this agent.", ("version", "driver", "driver_version")),
    "berth_agent_connected": ("Whether the portal answers, 1 or 0.", ()),
    "berth_agent_leases": ("Leases on this node by phase.", ("phase",)),
    "berth_agent_revisions_behind": ("Revisions of the desired state not carried out yet.", ()),
    "berth_agent_health_events": ("What is wrong now, by severity.", ("severity",)),
    "berth_agent_processes": ("Processes on the devices by whose they are.", ("state",)),
})  # fmt: skip


class ListenError(Exception):
    """The page cannot be served at its address; the sentence says why."""


def listen_address(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6]:port``; raises ValueError."""
    parts = urlsplit(f"//{text}")
    if parts.netloc != text or not parts.hostname or not parts.port or "@" in text:
        raise ValueError(f"{text!r} is no address to listen on; write 127.0.0.1:9835")
    return parts.hostname, parts.port


class _Page(MetricsHandler):
    # Who opens a socket and says nothing does not keep a thread.
    timeout = 10


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class MetricsExporter:
    """Serves one page in threads of its own; what it shows is put together in the agent's loop."""

    def __init__(self, worker: NodeWork, clock: Callable[[], int], is_connected: Callable[[], bool]) -> None:
        self._worker = worker
        self._clock = clock
        self._is_connected = is_connected
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def serving(self, host: str, port: int) -> Iterator[int]:
        """Serve while the block runs, inside a running loop; gives the port. Raises ListenError."""
        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        handler = type("Page", (_Page,), {"registry": registry})
        is_v6 = ":" in host
        kind = type("Server", (_Server,), {"address_family": socket.AF_INET6 if is_v6 else socket.AF_INET})
        try:
            server = kind((host, port), handler)
        except OSError as no:
            raise ListenError(f"cannot serve metrics at {host}:{port}: {no}") from no
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        log.info("metrics for Prometheus at %s:%d", host, server.server_port)
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()

    def collect(self) -> list[Metric]:
        """Return what is known now; called in a thread of the server, nothing when the agent does not answer."""
        if self._loop is None:
            return []
        asked = asyncio.run_coroutine_threadsafe(self.read(), self._loop)
        try:
            return asked.result(ANSWER_WITHIN_S)
        except TimeoutError:
            asked.cancel()
            log.warning("the devices did not answer a scrape within %g s", ANSWER_WITHIN_S)
            return []

    async def read(self) -> list[Metric]:
        """Return all families; devices that cannot be read are left out."""
        reading = await self._worker.recent_reading(FRESH_NS)
        return [*self._host(), *self._devices(reading)]

    def _host(self) -> list[Metric]:
        reconciler, driver = self._worker.reconciler, self._worker.reconciler.driver
        phases = Counter(record.phase for record in reconciler.lease_records.values())
        severities = Counter(fact.severity for fact in reconciler.health_facts())
        behind = max(0, reconciler.ledger.revision - reconciler.carried_out)
        rows: dict[str, dict[tuple[str, ...], float]] = {
            "berth_agent_info": {(__version__, driver.name, driver.version): 1},
            "berth_agent_connected": {(): float(self._is_connected())},
            "berth_agent_leases": {(phase,): n for phase, n in phases.items()},
            "berth_agent_revisions_behind": {(): behind},
            "berth_agent_health_events": {(severity,): n for severity, n in severities.items()},
        }
        if self._worker.processes is not None:
            states = Counter(process.state for process in self._worker.processes)
            rows["berth_agent_processes"] = {(state,): n for state, n in states.items()}
        families: list[Metric] = []
        for name, values in rows.items():
            help_text, labels = HOST_FAMILIES[name]
            family = GaugeMetricFamily(name, help_text, labels=labels)
            for key, value in sorted(values.items()):
                family.add_metric(key, value)
            families.append(family)
        return families

    def _devices(self, reading: DriverReading) -> list[Metric]:
        families = {name: GaugeMetricFamily(name, text, labels=LABELS) for name, text in FIELDS.items()}
        places = self._held()
        whole = {uuid: found[0] for uuid, found in places.items() if found[0][1].slot.mode == "exclusive"}
        xids = self._xids()
        for sample in reading.devices:
            holder = whole.get(sample.device)
            labels = self._labels(sample.device, "", holder[0] if holder else None)
            known = _of_device(sample, self._memory(sample.device))
            if xids is not None:
                known[XID] = xids.get(sample.device, 0)
            _add(families, labels, known)
        parts = {part.partition: part for part in reading.partitions}
        for uuid, found in places.items():
            for record, place in found if uuid not in whole else ():
                part = parts.get(place.partition)
                if part is not None:
                    known = figures(
                        util=part.util_percent, memory_used_mib=part.memory_used_mib, memory_mib=part.memory_mib,
                        power_w=part.power_w, sm=part.sm_percent, tensor=part.tensor_percent,
                        bandwidth=part.bandwidth_percent,
                    )  # fmt: skip
                    _add(families, self._labels(uuid, str(place.slot.start), record), known)
        return [family for family in families.values() if family.samples]

    def _held(self) -> dict[str, list[tuple[LeaseRecord, LeasePlace]]]:
        """Return what ready leases hold, by device."""
        held: dict[str, list[tuple[LeaseRecord, LeasePlace]]] = {}
        for record in self._worker.reconciler.lease_records.values():
            for place in record.places if record.phase == READY else ():
                held.setdefault(place.slot.device, []).append((record, place))
        return held

    def _xids(self) -> dict[str, int] | None:
        """Return the highest open XID by device, None where devices do not tell their health."""
        facts = self._worker.reconciler.health_facts()
        if any(fact.code == "health_unreadable" for fact in facts):
            return None
        found: dict[str, int] = {}
        for fact in facts:
            if fact.device and fact.code.isdecimal():
                found[fact.device] = max(found.get(fact.device, 0), int(fact.code))
        return found

    def _memory(self, uuid: str) -> int | None:
        fact = self._worker.reconciler.devices.get(uuid)
        return fact.memory_mib if fact else None

    def _labels(self, uuid: str, start: str, record: LeaseRecord | None) -> tuple[str, ...]:
        reconciler = self._worker.reconciler
        fact = reconciler.devices.get(uuid)
        index, model = (str(fact.index), fact.model) if fact else ("", "")
        return (
            reconciler.node, index, uuid, model, start, record.lease if record else "", record.team if record else "",
        )  # fmt: skip


def _of_device(sample: DeviceSample, memory_mib: int | None) -> dict[str, float]:
    return figures(
        util=sample.util_percent, memory_used_mib=sample.memory_used_mib, memory_mib=memory_mib,
        power_w=sample.power_w, power_limit_w=sample.power_limit_w, temperature_c=sample.temperature_c,
        energy_mj=sample.energy_mj, sm=sample.sm_percent, tensor=sample.tensor_percent,
        bandwidth=sample.bandwidth_percent,
    )  # fmt: skip


def _add(
    families: Mapping[str, GaugeMetricFamily], labels: tuple[str, ...], known: Mapping[str, float]
) -> None:
    for name, value in known.items():
        families[name].add_metric(labels, value)
