"""What is known of each device of a host: who it is, its MIG sizes, and what it can be used for now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from nodeagent.drivers.boot_devices import BootDevices
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.inventory.identity import board_of, device_fact
from nodeagent.drivers.nvml.inventory.modes import ModeOffers
from nodeagent.drivers.nvml.inventory.topology import DeviceLinks, links_of
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.drivers.nvml.library.handles import DeviceHandles
from nodeagent.drivers.nvml.mig.control import MigControl
from nodeagent.drivers.nvml.mig.profiles import MigSizes, read_sizes
from nodeagent.protocol.messages import DeviceFact

log = logging.getLogger(__name__)


class KnownDevices(Mapping[str, DeviceFact]):
    """Facts by UUID, as last read; ``sizes`` is filled beside them. A lost device is told as it was."""

    def __init__(
        self,
        calls: NvmlCalls,
        devices: DeviceHandles,
        mig: MigControl,
        offers: ModeOffers,
        boot_devices: BootDevices,
        *,
        sizes: dict[str, MigSizes],
        mode_of: Callable[[str], str],
    ) -> None:
        """Read every device. ``mode_of`` tells the mode that a device is shared in now, "" without shares."""
        self._calls, self._devices, self._mig, self._offers, self._boot_devices = (
            calls,
            devices,
            mig,
            offers,
            boot_devices,
        )
        self._sizes, self._mode_of = sizes, mode_of
        self._facts: dict[str, DeviceFact] = {}
        self._unread: set[str] = set()
        for uuid in list(devices):
            self._learn(uuid, boot_devices.known.get(devices.indexes[uuid]))
        self._note_links()

    def __getitem__(self, uuid: str) -> DeviceFact:
        return self._facts[uuid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def read_again(self, uuid: str) -> None:
        """Read a device that was lost when the agent started, once it answers: its sizes are not known before."""
        if uuid not in self._unread:
            return
        with suppress(NvmlLikeError):  # it is lost still: it stays as it was
            self._devices.fresh(uuid)
            self._learn(uuid, None)
        if uuid not in self._unread:
            log.info("%s answers again and was read anew", uuid)
            self._note_links()

    def refresh(self, uuid: str) -> None:
        """Bring what can change about a device up to date: its MIG mode and what it can be used for."""
        try:
            handle = self._devices.fresh(uuid)
            modes = self._mig.modes(handle)
        except NvmlLikeError as no:
            log.warning("%s cannot be read: %s", uuid, no.detail)
            return
        offered, refusals = self._offers.of(uuid, handle, self._sizes[uuid], shared=self._mode_of(uuid))
        enabled = None if modes is None else bool(modes[0])
        self._facts[uuid] = replace(self._facts[uuid], modes=offered, refusals=refusals, mig_enabled=enabled)

    def _learn(self, uuid: str, known: DeviceFact | None) -> None:
        handle, library = self._devices[uuid], self._calls.library
        sizes = read_sizes(self._calls, handle, board_of(library, handle))
        fact = device_fact(library, handle, self._devices.indexes[uuid], sizes)
        is_told = fact is not None
        if fact is None and known is not None and known.uuid == uuid:
            # It is lost, or as good as: what it was is told, so that its leases are not forgotten.
            fact = known
            self._unread.add(uuid)
        if fact is not None:
            self._sizes[uuid], self._facts[uuid] = sizes, fact
            self.refresh(uuid)
        if is_told:
            self._unread.discard(uuid)

    def _note_links(self) -> None:
        """Say where the devices sit, and write down what is known of them for when one cannot tell."""
        found = links_of(self._calls.library, self._devices)
        if self._unread:  # nobody can ask how far away a lost device is: believed is what was known
            found |= {
                f.uuid: DeviceLinks(f.link_domain, f.pcie_switch) for f in self._boot_devices.known.values()
            }
        for uuid, links in found.items():
            if uuid in self._facts:
                self._facts[uuid] = replace(self._facts[uuid], **links._asdict())
        self._boot_devices.keep(self._facts.values())
