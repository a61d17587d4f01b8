"""The simulated ``nvidia-smi``, as far as the agent uses it: the time-slice policy of devices by UUID."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeagent.host.shell import Done
from nodeagent.simulation.machine.host import SimulatedHost

PROGRAM: Final = "nvidia-smi"
WORDS: Final = ("Default", "Short", "Medium", "Long")
USAGE: Final = "usage: nvidia-smi compute-policy -i <uuid> [--list | --set-timeslice <0-3>]"


@dataclass(slots=True)
class SimulatedSmi:
    """One program for a SimulatedShell. Policies end with a boot of the host (an inference, as for other policies).

    ``lists`` False: it sets policies and does not list them. ``on_change`` is called around every change.
    """

    host: SimulatedHost
    lists: bool = True
    on_change: Callable[[str], None] = lambda name: None
    _policies: dict[str, int] = field(default_factory=dict)
    _boot: str = ""

    def policy(self, uuid: str) -> int:
        """Return the time slice of a device: 0 default to 3 long."""
        if self._boot != self.host.boot_id:
            self._policies, self._boot = {}, self.host.boot_id
        return self._policies.get(uuid, 0)

    def __call__(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        """Run the program once."""
        words = list(argv[1:])
        if words[:2] != ["compute-policy", "-i"] or len(words) < 4:
            return Done(2, err=USAGE)
        uuid, verb, rest = words[2], words[3], words[4:]
        try:
            device = self.host.device(uuid)
        except KeyError:
            return Done(6, err=f"No devices were found with identifier {uuid}")
        if device.gpu.is_lost:
            return Done(15, err="Unable to determine the device handle: GPU is lost.")
        if verb == "--list" and self.lists:
            value = WORDS[self.policy(uuid)]
            return Done(0, f"| GPU compute policies:  |\n| {device.index}  Timeslice  {value} |\n")
        if verb == "--set-timeslice" and len(rest) == 1:
            return self._set(uuid, rest[0])
        return Done(2, err=USAGE)

    def _set(self, uuid: str, word: str) -> Done:
        if not word.isdigit() or int(word) >= len(WORDS):
            return Done(2, err=f"Invalid time slice {word}")
        if not self.host.is_root:
            return Done(4, err="Insufficient Permissions")
        self.policy(uuid)
        self.on_change("timeslice.before")
        self._policies[uuid] = int(word)
        self.on_change("timeslice.after")
        return Done(0, f"Set timeslice to {WORDS[int(word)]} for GPU {uuid}\n")
