"""When a device may be changed by tests: asked for by name, by root, and only one that nobody uses."""

from __future__ import annotations

from nodeagent.drivers.errors import NvmlLikeError
from tests.gpu.devices import Device

FLAG = "--allow-gpu-writes"


class NotAllowedError(Exception):
    """The device must not be changed; the sentence says why."""


def require_writable(device: Device, *, allowed: bool) -> None:
    """Raise NotAllowedError unless changing is asked for and allowed, and the device is idle and empty."""
    if not allowed:
        raise NotAllowedError(f"these tests change a device; give {FLAG} to let them")
    if not device.is_root:
        raise NotAllowedError(
            "MIG, MPS modes and memory limits are root's to change; run these tests as root"
        )
    modes = device.mig_modes
    if modes and modes != (0, 0):
        raise NotAllowedError(f"MIG is on (or about to be) on {device.uuid}; switch it off first")
    try:
        found = device.driver.processes(device.uuid)
    except NvmlLikeError as no:
        raise NotAllowedError(f"whether {device.uuid} is in use cannot be told: {no}") from no
    if found:
        pids = ", ".join(str(process.pid) for process in found[:5])
        raise NotAllowedError(f"{device.uuid} is in use by {pids}; tests change idle devices only")
    if standing := device.driver.observe(device.uuid):
        raise NotAllowedError(f"{standing[0].uuid} stands on {device.uuid}; tests change empty devices only")
    if (mode := device.answer("nvmlDeviceGetComputeMode", device.handle)) != 0:
        raise NotAllowedError(
            f"{device.uuid} has compute mode {mode}; tests change devices in the default mode only"
        )
