"""The devices of a host by UUID: handles kept, looked up again once stale, so that one lost device stops no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.library.calls import NvmlCalls
from nodeagent.drivers.nvml.library.values import text
from nodeagent.protocol.messages import HealthFact


class DeviceHandles(Mapping[str, Any]):
    """Handles by UUID, in the order of the host. As a mapping it gives them as they were last known good.

    ``silent`` are the indexes of devices that did not even tell their UUID when the agent started, and that nobody
    remembers.
    """

    def __init__(self, calls: NvmlCalls, count: int, known: Mapping[int, str]) -> None:
        """Look at all devices; ``known`` names those of this boot by index, for one that is lost and cannot."""
        self._calls = calls
        self._handles: dict[str, Any] = {}
        self.indexes: dict[str, int] = {}
        self.silent: list[int] = []
        handles = [calls.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        names = ["" if one is None else text(calls.ask("nvmlDeviceGetUUID", one)) for one in handles]
        for index, handle in enumerate(handles):
            uuid = names[index] or known.get(index, "")
            if handle is None or not uuid or (not names[index] and uuid in names):
                self.silent.append(index)
            else:
                self._handles[uuid], self.indexes[uuid] = handle, index

    def __getitem__(self, uuid: str) -> Any:
        return self._handles[uuid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def health(self) -> list[HealthFact]:
        """Return that devices are there which nobody can tell by name."""
        if not self.silent:
            return []
        which = ", ".join(map(str, self.silent))
        detail = f"the driver lists device {which}, which does not tell its UUID; look into the kernel log and reboot"
        return [HealthFact("", "card_silent", "critical", detail, "reboot_node")]

    def fresh(self, uuid: str) -> Any:
        """Return a handle that still means this device; raises NOT_FOUND, GPU_IS_LOST.

        Looking a device up by UUID can take seconds on a busy host, so it is done only when the kept handle fails.
        """
        if uuid not in self._handles:
            raise NvmlLikeError(errors.NOT_FOUND, f"{uuid} is not on this node")
        doing = f"reaching {uuid}"
        try:
            if text(self._calls.do("nvmlDeviceGetUUID", self._handles[uuid], doing=doing)) == uuid:
                return self._handles[uuid]
        except NvmlLikeError as no:
            if no.code == errors.GPU_IS_LOST:
                raise
        self._handles[uuid] = self._calls.do("nvmlDeviceGetHandleByUUID", uuid, doing=doing)
        return self._handles[uuid]
