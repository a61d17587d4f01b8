"""Samples of agents come in here: checked against what the node has, sent on as one compact frame.

Nothing here touches the database per frame or knows of browsers. Frames of all nodes that arrive
within ``BATCH_S`` leave together.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
import weakref
from collections import deque
from datetime import datetime

from django.utils import timezone
from redis.exceptions import RedisError

from nodeagent.protocol.messages import DeviceSample, Samples, SlotSample
from portal.common.live import FRAMES, hub, wire_name
from portal.telemetry import minutes, processes
from portal.telemetry.frames import DeviceNow, ExtraFigures, Frame, SlotNow, by_lease, lease_now, pack
from portal.telemetry.latest import LATEST, LATEST_FOR_S
from portal.telemetry.ring import KNOWN_BOOTS, is_next
from portal.telemetry.roster import NodeFacts, Roster, RosterKeeper

log = logging.getLogger(__name__)
MINUTES = "berth:minutes"  # list: finished minutes that wait for the worker
MOST_MINUTES = 10_000
# What was handed over is remembered for longer than the worker takes to store it: a Redis that lost its memory is told
# again. A key of this process says that it did not.
REMEMBER_S = 300.0
TOLD = "berth:minutes:told"
BATCH_S = 0.05
SEND_WITHIN_S = 3
# How values are called on the way to browsers.
FIELDS = {
    "sm_percent": "sm",
    "tensor_percent": "tensor",
    "bandwidth_percent": "bandwidth",
    "power_w": "power_w",
}


class Intake:
    """One per event loop: the order of frames, the open minutes and what leaves next."""

    def __init__(self) -> None:
        self.roster = RosterKeeper()
        self.book = minutes.MinuteBook()
        self.dropped = 0
        self._last: dict[str, Frame] = {}
        self._boots: dict[str, list[str]] = {}
        self._frames: dict[str, str] = {}
        self._processes: dict[str, processes.StoredProcesses] = {}
        self._minutes: list[str] = []
        self._told: deque[tuple[float, str]] = deque(maxlen=MOST_MINUTES)
        self._told_key = f"{TOLD}:{uuid.uuid4().hex}"
        self._is_look_due = False
        self._sending: asyncio.Task[None] | None = None

    async def accept(self, name: str, samples: Samples, *, at: datetime) -> bool:
        """Take a node's samples; False when they were overtaken or the node is not known."""
        roster = await self.roster.ready()
        node = roster.nodes.get(name)
        if node is None:
            self.roster.want()
            return False
        frame = self._frame(roster, node, samples, at.timestamp())
        if not self._is_newer(frame):
            self.dropped += 1
            return False
        self._last[name] = frame
        self._count(roster, node, frame, samples)
        self._frames[name] = pack(frame)
        if samples.processes is not None:
            self._processes[name] = processes.pack(samples.processes, at=frame.at)
        self._send_soon()
        return True

    def _is_newer(self, frame: Frame) -> bool:
        before, boots = self._last.get(frame.node), self._boots.setdefault(frame.node, [])
        if before is None or frame.boot_id not in boots:
            boots[:] = [*boots[-KNOWN_BOOTS + 1 :], frame.boot_id]
            return True
        return frame.boot_id == boots[-1] and is_next(frame, before)

    def _frame(self, roster: Roster, node: NodeFacts, samples: Samples, at: float) -> Frame:
        devices = [_device(node, sample) for sample in samples.devices]
        slots = [_slot(roster, node, sample) for sample in samples.slots]
        if None in devices or None in slots:
            # New on the node, or something that it may not speak for: look again, leave it out until then.
            self.roster.want()
        return Frame(
            node.name,
            round(at, 3),
            samples.boot_id,
            samples.seq,
            tuple({device.uuid: device for device in devices if device}.values()),
            tuple({(slot.lease, slot.device, slot.start): slot for slot in slots if slot}.values()),
        )

    def _count(self, roster: Roster, node: NodeFacts, frame: Frame, samples: Samples) -> None:
        minute, over = self.book.minute(node.name, frame.at)
        if over is not None:
            self._keep([over])
        counters = {sample.device: sample.energy_mj for sample in samples.devices}
        for device in frame.devices:
            pk = node.devices[device.uuid].id
            limit_w = node.devices[device.uuid].limit_w
            energy, is_refused = self.book.energy_since(
                pk, frame.boot_id, counters[device.uuid], at=frame.at, limit_w=limit_w
            )
            # A power beyond the model's limit is no figure either: energy may be made of it.
            is_too_much = device.power_w is not None and device.power_w > limit_w * minutes.TOLERANCE
            sums = minute.devices.setdefault(pk, minutes.MinuteSums())
            sums.add(device.util, device.memory_used_mib, energy)
            sums.add_activity(power_w=None if is_too_much else device.power_w)
            sums.energy_refused += is_refused or is_too_much
        for lease, slots in by_lease(frame.slots).items():
            now = lease_now(frame, slots)
            sums = minute.leases.setdefault(roster.leases[lease].id, minutes.MinuteSums())
            sums.add(now.util, now.memory_used_mib)
            more = now.more
            if more is not None:
                sums.add_activity(sm=more.sm, tensor=more.tensor, bandwidth=more.bandwidth)
            sums.add_activity(power_w=now.power_w)

    def flush(self, *, now: float) -> None:
        """Send on the minutes that are over although their node has gone silent, and again what Redis has lost."""
        self._keep(self.book.overdue(now=now))
        while self._told and self._told[0][0] < now - REMEMBER_S:
            self._told.popleft()
        self._is_look_due = bool(self._told)
        if self._minutes or self._is_look_due:
            self._send_soon()

    def _keep(self, over: list[minutes.Minute]) -> None:
        self._minutes.extend(minutes.texts(over))
        del self._minutes[:-MOST_MINUTES]

    def _send_soon(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        while self._frames or self._minutes or self._is_look_due:
            await asyncio.sleep(BATCH_S)
            frames, self._frames = self._frames, {}
            lists, self._processes = self._processes, {}
            over, self._minutes = self._minutes, []
            self._is_look_due = False
            try:
                async with asyncio.timeout(SEND_WITHIN_S):
                    is_remembered = await self._put(frames, lists, over)
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("%d frames not sent: %s", len(frames), error)
                self._minutes = (over + self._minutes)[-MOST_MINUTES:]
                return
            if not is_remembered and self._told:
                log.warning("Redis has lost its memory: %d minutes are handed over again", len(self._told))
                self._minutes[:0] = [text for _at, text in self._told]
            now = timezone.now().timestamp()
            self._told.extend((now, text) for text in over)

    async def _put(
        self, frames: dict[str, str], lists: dict[str, processes.StoredProcesses], over: list[str]
    ) -> bool:
        """Hand everything over; False when Redis does not remember that this process did so before."""
        async with hub().client.pipeline(transaction=False) as pipe:
            if frames:
                pipe.publish(wire_name(FRAMES), "[" + ",".join(frames.values()) + "]")
                pipe.hset(LATEST, items=[part for item in frames.items() for part in item])
                pipe.expire(LATEST, LATEST_FOR_S)
            if lists:
                pipe.hset(processes.NEWEST, mapping={name: one.rows for name, one in lists.items()})
                pipe.hset(processes.ORPHANS, mapping={name: one.orphans for name, one in lists.items()})
                pipe.expire(processes.NEWEST, LATEST_FOR_S)
                pipe.expire(processes.ORPHANS, LATEST_FOR_S)
            if over:
                pipe.rpush(MINUTES, *over)
                pipe.ltrim(MINUTES, -MOST_MINUTES, -1)
            # The last command: what came before it in this batch is there when it is.
            pipe.set(self._told_key, "1", ex=round(2 * REMEMBER_S), get=True)
            *_rest, before = await pipe.execute()
        return before is not None


def _device(node: NodeFacts, sample: DeviceSample) -> DeviceNow | None:
    facts = node.devices.get(sample.device)
    if facts is None:
        return None
    return DeviceNow(
        sample.device,
        _tenth(sample.util_percent),
        sample.memory_used_mib,
        facts.memory_mib,
        _tenth(sample.power_w),
        _tenth(sample.temperature_c),
        sample.source,
    )


def _slot(roster: Roster, node: NodeFacts, sample: SlotSample) -> SlotNow | None:
    lease = roster.leases.get(sample.lease)
    place = lease.places.get((sample.device, sample.start)) if lease and lease.node == node.name else None
    if lease is None or place is None:
        return None
    return SlotNow(
        lease.uid,
        lease.team_id,
        place.device,
        place.start,
        place.size,
        place.is_whole,
        _tenth(sample.util_percent),
        sample.memory_used_mib,
        place.memory_mib,
        sample.source,
        _more(sample, is_whole=place.is_whole),
    )


def _more(sample: SlotSample, *, is_whole: bool) -> ExtraFigures | None:
    """Return what some devices tell beside utilisation and memory; None for nothing, which costs nothing.

    The power of a whole board is measured and stands with its device.
    """
    power_w = None if is_whole else sample.power_w
    if sample.sm_percent is sample.tensor_percent is sample.bandwidth_percent is power_w is None:
        return None
    sources = {FIELDS[name]: source for name, source in sample.sources.items() if name in FIELDS}
    return ExtraFigures(
        _tenth(sample.sm_percent),
        _tenth(sample.tensor_percent),
        _tenth(sample.bandwidth_percent),
        _tenth(power_w),
        sources,
    )


def _tenth(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


_intakes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Intake] = weakref.WeakKeyDictionary()


def intake() -> Intake:
    """Return the intake of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _intakes:
        _intakes[loop] = Intake()
    return _intakes[loop]


async def accept_samples(node_id: int, name: str, samples: Samples, *, at: datetime | None = None) -> bool:
    """Take one Samples message of a node whose connection is proven.

    What the node may not speak for (a device or a lease that is not on it) is left out. False when
    the message was overtaken or ``node_id`` is no node we know. Costs no query and no wait.
    """
    keeper = intake()
    node = (await keeper.roster.ready()).nodes.get(name)
    if node is not None and node.id != node_id:
        return False
    return await keeper.accept(name, samples, at=at or timezone.now())
