"""How fast one unit of a flavor is, in reference GPUs, so that sizes with equal memory can be told apart."""

from __future__ import annotations

from collections.abc import Iterable

from portal.catalog.models import Flavor
from portal.fleet.models import Mode, Profile


def speeds_of(flavors: Iterable[Flavor]) -> dict[int, int | None]:
    """Return by flavor id its speed in thousandths of a reference GPU; None where nobody told it. One query.

    The weight of the device model, times the part of its multiprocessors that a MIG slice has, or the part of the
    compute that MPS leaves to a share. Where only memory is limited, or time is sliced, it is the most that one gets.
    """
    flavors = list(flavors)
    models = {flavor.device_model_id for flavor in flavors if flavor.mode == Mode.MIG}
    units: dict[tuple[int, str], int | None] = {}
    whole: dict[int, int] = {}
    for row in Profile.objects.filter(device_model__in=models) if models else ():
        units[row.device_model_id, row.name] = row.sm_count
        whole[row.device_model_id] = max(whole.get(row.device_model_id, 0), row.sm_count or 0)
    return {flavor.pk: _speed(flavor, units, whole) for flavor in flavors}


def _speed(flavor: Flavor, units: dict[tuple[int, str], int | None], whole: dict[int, int]) -> int | None:
    weight = flavor.device_model.weight_milli
    if flavor.mode == Mode.MIG:
        own = units.get((flavor.device_model_id, flavor.profile))
        return round(weight * own / whole[flavor.device_model_id]) if own else None
    if flavor.mode == Mode.MPS:
        return weight * flavor.share_milli // 1000
    return weight
