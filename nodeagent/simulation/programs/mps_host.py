"""The simulated MPS program of a simulated host, on its devices and their slices."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml.system import mig_uuid
from nodeagent.simulation.programs.mps import SimulatedMps

EXCLUSIVE_PROCESS = 3
SOCKET_ROOM = 107


def mps_on(
    host: SimulatedHost, uids: Mapping[str, int], *, newest: int = 3, socket_room: int = SOCKET_ROOM
) -> SimulatedMps:
    """Return the program of this host: ``uids`` are its accounts, ``newest`` the protocol that its driver speaks.

    ``socket_room``: how long the path of a socket may be.
    """

    def where(uuid: str) -> tuple[str, int | None] | None:
        for device in host.devices:
            if device.gpu.is_lost:
                continue
            if device.uuid == uuid:
                return uuid, None
            for instance in device.gpu.instances.values():
                if any(mig_uuid(device, compute) == uuid for compute in instance.compute.values()):
                    return device.uuid, instance.id
        return None

    return SimulatedMps(
        host.world,
        where,
        newest,
        socket_room=socket_room,
        names={uid: name for name, uid in uids.items()},
        is_exclusive=lambda device: host.device(device).compute_mode == EXCLUSIVE_PROCESS,
        # Looked up at each change: a host's hook is set after it was built.
        on_change=lambda name: host.on_change(name),
    )
