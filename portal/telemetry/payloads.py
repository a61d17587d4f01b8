"""The JSON that browsers get: pure functions from readings to text. docs/live.md shows each shape."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from portal.telemetry.frames import DeviceNow, ExtraFigures, Frame, LeaseNow, SlotNow
from portal.telemetry.ring import Row
from portal.telemetry.roster import SlotPlace

IsSeen = Callable[[int], bool]
NOTHING_MORE: Final[dict[str, Any]] = {"sm": None, "tensor": None, "bandwidth": None, "sources": {}}


def dumps(value: Any) -> str:
    """Return compact ASCII JSON; NaN cannot occur."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def instant(unix_s: float) -> str:
    """Return a Unix second as RFC 3339 with milliseconds."""
    return datetime.fromtimestamp(unix_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def alias(uid: str, *, secret: str) -> str:
    """Return a lease's name on the map of people who may not know it: stable, one-way."""
    return "other-" + hashlib.blake2b(uid.encode(), key=secret.encode()[:64], digest_size=6).hexdigest()


def envelope(kind: str, topic: str, seq: int, at: float, data: str) -> str:
    """Return a snapshot or frame around data that is JSON text already."""
    return f'{{"type":"{kind}","topic":{json.dumps(topic)},"seq":{seq},"at":"{instant(at)}","data":{data}}}'


def lease_data(
    now: LeaseNow | None, places: Sequence[SlotPlace], *, memory_mib: int | None, is_fresh: bool
) -> dict[str, Any]:
    """Return a lease's own figures; what was not measured lately is None, the sizes stay known."""
    if now is not None and is_fresh:
        slots = [_slot(slot.device, slot.start, slot.util, slot.memory_used_mib) for slot in now.slots]
        return {
            "util": now.util,
            "memory_used_mib": now.memory_used_mib,
            "memory_mib": now.memory_mib,
            "power_w": now.power_w,
            "source": now.source,
            **(NOTHING_MORE if now.more is None else _more(now.more)),
            "slots": slots,
        }
    return {
        "util": None,
        "memory_used_mib": None,
        "memory_mib": sum(place.memory_mib for place in places) or memory_mib,
        "power_w": None,
        "source": "",
        **NOTHING_MORE,
        "slots": [_slot(place.device, place.start, None, None) for place in places],
    }


def _more(more: ExtraFigures) -> dict[str, Any]:
    return {"sm": more.sm, "tensor": more.tensor, "bandwidth": more.bandwidth, "sources": more.sources}


def _slot(device: str, start: int, util: float | None, memory_used_mib: int | None) -> dict[str, Any]:
    return {"device": device, "start": start, "util": util, "memory_used_mib": memory_used_mib}


def with_history(data: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """Return a lease's data for a snapshot: the last five minutes with it."""
    return {**data, "history": rows}


def node_data(frame: Frame, state: str, *, is_seen: IsSeen, secret: str) -> str:
    """Return one node of the map as JSON text. Leases of teams out of sight appear under an alias."""
    slots: dict[str, list[list[Any]]] = {}
    for slot in frame.slots:
        slots.setdefault(slot.device, []).append(_map_slot(slot, is_seen, secret))
    devices = {device.uuid: _map_device(device, slots.get(device.uuid, [])) for device in frame.devices}
    return dumps({"state": state, "devices": devices})


def _map_slot(slot: SlotNow, is_seen: IsSeen, secret: str) -> list[Any]:
    name = slot.lease if is_seen(slot.team_id) else alias(slot.lease, secret=secret)
    return [name, slot.start, slot.size, slot.util]


def _map_device(device: DeviceNow, slots: list[list[Any]]) -> dict[str, Any]:
    return {
        "util": device.util,
        "memory_used_mib": device.memory_used_mib,
        "memory_mib": device.memory_mib,
        "power_w": device.power_w,
        "temp": device.temp,
        "slots": slots,
    }


def nodes_data(nodes: dict[str, str]) -> str:
    """Return the data of ``fleet`` or ``node:`` from the nodes' texts."""
    return '{"nodes":{' + ",".join(f"{json.dumps(name)}:{text}" for name, text in nodes.items()) + "}}"


def event_text(event: dict[str, Any], team: str) -> str:
    """Return a change of state as people's sockets get it."""
    named = {"job": event["job"]} if event.get("job") else {}
    return dumps(
        {
            **named,
            "type": "event",
            "topic": "me",
            "event": event["event"],
            "lease": event.get("lease", ""),
            "request": event.get("request", ""),
            "team": team,
            "state": event.get("state", ""),
            "at": event.get("at", ""),
        }
    )


def error_text(code: str, detail: str, topic: str = "") -> str:
    """Return a refusal: a stable code and a sentence."""
    named = {"topic": topic} if topic else {}
    return dumps({"type": "error", "code": code, "detail": detail, **named})


PONG = '{"type":"pong"}'
