"""MIG sizes as each device's driver tells them, and which of them are one slice under two names.

Drivers name the same slice differently (1g.23gb and 1g.24gb of one board). Everything that one told stays with its
device; ``size`` is the name under which the slice is asked for, counted and priced on every device of the model.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import transaction

from nodeagent.protocol.messages import DeviceFact
from portal.common.sql import fetch
from portal.fleet.models import DeviceModel, Profile

log = logging.getLogger(__name__)
# Two figures that differ by less than one part in so many are the same one, told by two drivers.
TOLERANCE = 10
_MEMORY_IN_NAME = re.compile(r"\.\d+gb")
# The size of what is asked for by any of its names; ``{model}`` and ``{name}`` are SQL expressions.
SIZE_SQL = (
    "coalesce((SELECT named.size FROM fleet_profile named"
    " WHERE named.device_model_id = {model} AND named.name = {name}), {name})"
)


def slot_share(
    slices: int, grid: int, memory_mib: int, board_mib: int, sm: int | None, board_sm: int | None
) -> int:
    """Return a slice's share of its board in thousandths, rounded up: the largest of SM, MiB and slots."""
    shares = [-(-slices * 1000 // grid), -(-memory_mib * 1000 // board_mib)]
    if sm and board_sm:
        shares.append(-(-sm * 1000 // board_sm))
    return min(1000, max(shares))


def is_near(one: int, other: int) -> bool:
    """Say whether two figures are the same up to what drivers count differently."""
    return abs(one - other) * TOLERANCE <= max(one, other)


def told_by(fact: DeviceFact) -> list[dict[str, Any]]:
    """Return the MIG sizes of one device in its driver's own words, with their share of that device."""
    return [
        {
            "name": p.name,
            "slices": p.slices,
            "starts": list(p.starts),
            "memory_mib": p.memory_mib,
            "sm_count": p.sm_count,
            "max_instances": p.max_instances,
            "share_milli": slot_share(
                p.slices, fact.grid, p.memory_mib, fact.memory_mib, p.sm_count, fact.sm_count
            ),
        }
        for p in fact.profiles
    ]


@transaction.atomic
def learn_sizes(model: DeviceModel, told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a driver told of a device of this model, each entry with its ``size``. Safe to repeat.

    A name that is new becomes a name of the model: of a size that it has where it is the same slice, of a new size
    otherwise. An entry that contradicts what its name means for the model is left out: nobody is given, or billed
    for, a slice that is larger or smaller than the one that was asked for. Locks the model's row where a name is new.
    """
    names = {row.name: row for row in model.profiles.order_by("id")}
    if any(one["name"] not in names for one in told):
        # Two nodes that tell of one slice under two new names at once must see each other's.
        DeviceModel.objects.select_for_update(no_key=True).get(pk=model.pk)
        names = {row.name: row for row in model.profiles.order_by("id")}
    found: dict[str, dict[str, Any]] = {}
    for one in told:
        row = names.get(one["name"])
        if row is None:
            size = _size_of(one, names.values())
            row = names[one["name"]] = Profile.objects.create(device_model=model, size=size, **one)
        if not is_same_slice(row, one):
            log.warning("%s: %s is not what its name means here: %s", model.slug, row.name, one)
            continue
        found.setdefault(row.size, {**one, "size": row.size})
    return list(found.values())


def is_same_slice(known: Profile, told: dict[str, Any]) -> bool:
    """Say whether two names are one slice: equal but for the memory in the name, and near in MiB and share."""
    return (
        _MEMORY_IN_NAME.sub("", known.name) == _MEMORY_IN_NAME.sub("", told["name"])
        and known.slices == told["slices"]
        and is_near(known.memory_mib, told["memory_mib"])
        and is_near(known.share_milli, told["share_milli"])
    )


def _size_of(told: dict[str, Any], known: Iterable[Profile]) -> str:
    same = (row.name for row in known if row.name == row.size and is_same_slice(row, told))
    return next(same, told["name"])


def size_names() -> dict[tuple[int, str], str]:
    """Return the size behind every other name of it, by model id and name: only those that differ."""
    rows = fetch("SELECT device_model_id, name, size FROM fleet_profile WHERE size <> name")
    return {(model, name): size for model, name, size in rows}


def own_names(device_ids: Iterable[int]) -> dict[tuple[int, str], str]:
    """Return what the drivers of these devices call a size, by device id and size: only where that differs."""
    rows = fetch(
        "SELECT d.id, own->>'size', own->>'name' FROM fleet_device d, jsonb_array_elements(d.profiles) own"
        " WHERE d.id = ANY(%s) AND own->>'size' <> own->>'name'",
        [list(device_ids)],
    )
    return {(device, size): name for device, size, name in rows}
