"""The devices of this boot, as they were when all of them answered: one that is lost later cannot say what it was."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nodeagent.drivers.shares import write_file
from nodeagent.protocol.messages import DeviceFact, ProfileFact

log = logging.getLogger(__name__)


class BootDevices:
    """A file in the folder that a reboot empties; what is not of this boot, or cannot be read, counts as nothing.

    ``looks_only``: it is read and never written.
    """

    def __init__(self, path: Path, boot_id: str, *, looks_only: bool = False) -> None:
        self._path, self._boot_id, self._looks_only = path, boot_id, looks_only
        self.known = self._read()

    def keep(self, facts: Iterable[DeviceFact]) -> None:
        """Write down the devices that are here; where that is not possible, it is only said."""
        found = {fact.index: fact for fact in facts}
        if found == self.known:
            return
        self.known = found
        if self._looks_only:
            return
        row = {"boot_id": self._boot_id, "cards": [asdict(fact) for fact in found.values()]}
        try:
            self._path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)  # holders pass it: docs/agent.md
            write_file(self._path, row)
        except OSError as no:
            log.warning("the devices of this boot cannot be noted in %s: %s", self._path, no)

    def _read(self) -> dict[int, DeviceFact]:
        try:
            row = json.loads(self._path.read_text(encoding="utf-8"))
            if row["boot_id"] != self._boot_id:
                return {}
            return {fact.index: fact for fact in map(_fact, row["cards"])}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as no:
            log.warning("%s cannot be read and counts as nothing: %s", self._path, no)
            return {}


def _fact(row: dict[str, Any]) -> DeviceFact:
    profiles = tuple(ProfileFact(**{**one, "starts": tuple(one["starts"])}) for one in row["profiles"])
    return DeviceFact(**{**row, "modes": tuple(row["modes"]), "profiles": profiles})
