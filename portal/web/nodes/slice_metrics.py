"""Why the utilisation of a slice is unknown, where the device is the reason."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from nodeagent.protocol.boards import UnknownBoardError, board
from portal.fleet.models import Device, DeviceModel, Mode
from portal.leases.models import Placement


def reports_slices(model: DeviceModel) -> bool | None:
    """Say whether a device tells the utilisation of its MIG slices; None for a model not in the table of boards.

    Reading a slice needs NVML's GPM calls, which Hopper and later devices answer (nvml.h,
    ``nvmlGpmMigSampleGet``).
    """
    for name in (model.name, model.slug):
        try:
            return board(name).has_slice_metrics
        except UnknownBoardError:
            continue
    return None


def silent_lease_text(placements: Iterable[Placement]) -> str:
    """Return why a lease's utilisation stays unknown, or ""; placements read with device and model."""
    return _text({p.device.model for p in placements if p.mode == Mode.MIG})


def silent_devices_text(devices: Iterable[Device]) -> str:
    """Return why slices of these devices show no utilisation, or ""; devices read with their model."""
    return _text({device.model for device in devices if Mode.MIG in device.modes})


def _text(models: set[DeviceModel]) -> str:
    silent = sorted(model.name for model in models if reports_slices(model) is False)
    if not silent:
        return ""
    return _(
        "%(model)s does not report the utilisation of single MIG slices; NVIDIA devices do so from the Hopper "
        "generation on. It is shown as unknown, not as zero."
    ) % {"model": pgettext("list", ", ").join(silent)}
