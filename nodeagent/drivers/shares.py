"""Who holds whole devices and shares of them: devices remember nothing of that, so a folder does."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.protocol.messages import HealthFact, PartitionFact

log = logging.getLogger(__name__)

WHOLE: Final = "exclusive"
ALL: Final = 1000
_TYPES: Final = {"str": str, "int": int, "bool": bool, "tuple[str, ...]": tuple}


@dataclass(frozen=True, slots=True)
class HeldShare:
    """A whole device (named by the device's UUID), a part of one or a share of one, in the hands of ``owner``.

    ``mode``, ``share_milli`` (thousandths of the device) and ``memory_mib`` are what was asked for; ``profile``,
    ``start`` and ``size`` (memory slices) are how it is reported. ``user`` and ``cgroup`` are known once its tenant
    is; "" before. Where a vendor's tool makes it, ``handle`` is the tool's name for it and ``made`` its size in the
    tool's terms; one without handle is only asked for, and ``before`` are the handles that stood then: after a crash
    they tell what is new from what is not ours. ``is_idle``: nobody's any more, but the device still has it.
    """

    partition: str
    device: str
    owner: str
    mode: str
    share_milli: int = 0
    memory_mib: int = 0
    profile: str = ""
    start: int = 0
    size: int = 0
    user: str = ""
    cgroup: str = ""
    handle: str = ""
    made: str = ""
    before: tuple[str, ...] = ()
    is_idle: bool = False

    def fact(self) -> PartitionFact:
        """Return it as the agent reports it."""
        return PartitionFact(self.partition, self.device, self.profile, self.start, self.size, self.owner)


class ShareBook:
    """One small file per share, in a folder that a reboot empties; files of another boot count as nothing and go.

    A file that cannot be read counts as nothing either; it is logged once and named among the health facts for as
    long as it is there.
    """

    def __init__(
        self,
        folder: Path,
        boot_id: str,
        *,
        on_change: Callable[[str], None] = lambda name: None,
        looks_only: bool = False,
    ) -> None:
        """Read the book. ``on_change`` is called before and after each change of it, for proofs.

        ``looks_only``: what changes is believed and never written; the files belong to the agent that runs.
        """
        self._folder, self._boot_id, self._on_change = folder, boot_id, on_change
        self._looks_only = looks_only
        self._lock = threading.Lock()
        self._shares: dict[str, HeldShare] = {}
        self._unread: list[str] = []
        try:
            paths = sorted(folder.glob("*.json"))
        except OSError as no:
            self._unread.append(str(folder))
            log.warning("the folder of shares %s cannot be read: %s", folder, no)
            paths = []
        for path in paths:
            self._recall(path)

    def on(self, device: str) -> list[HeldShare]:
        """Return what is handed out of one device, by name."""
        with self._lock:
            found = [share for share in self._shares.values() if share.device == device]
        return sorted(found, key=lambda share: share.partition)

    def get(self, partition: str) -> HeldShare | None:
        """Return one share, None where there is none of this name."""
        with self._lock:
            return self._shares.get(partition)

    def put(self, share: HeldShare) -> None:
        """Write a share to disk, then believe it; raises NvmlLikeError when the disk refuses."""
        if self.get(share.partition) == share:
            return
        self._on_change("share.put.before")
        if not self._looks_only:
            self._write(share)
        with self._lock:
            self._shares[share.partition] = share
        self._on_change("share.put.after")

    def drop(self, partition: str) -> None:
        """Forget a share; gone already is success."""
        if self.get(partition) is None:
            return
        self._on_change("share.drop.before")
        if not self._looks_only:
            self._erase(partition)
        with self._lock:
            self._shares.pop(partition, None)
        self._on_change("share.drop.after")

    def health(self) -> list[HealthFact]:
        """Return what could not be read when the agent started and is still there."""
        return [
            HealthFact(
                "",
                "share_unread",
                "warning",
                f"{path} cannot be read: what it named is not known to be taken; end its lease, then remove it",
                "watch",
            )
            for path in self._unread
            if os.path.lexists(path)
        ]

    def _write(self, share: HeldShare) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._path(share.partition), {"boot_id": self._boot_id, **asdict(share)})
        except OSError as no:
            raise self._unwritable(no) from no

    def _erase(self, partition: str) -> None:
        try:
            self._path(partition).unlink(missing_ok=True)
            _settle(self._folder)
        except OSError as no:
            raise self._unwritable(no) from no

    def _path(self, partition: str) -> Path:
        return self._folder / f"{quote(partition, safe='')}.json"

    def _unwritable(self, no: OSError) -> NvmlLikeError:
        return NvmlLikeError(
            errors.UNKNOWN,
            f"who holds what cannot be noted in {self._folder}: {no}; let the agent write there",
        )

    def _recall(self, path: Path) -> None:
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
            boot, share = _share(row)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as no:
            log.warning("%s is no share that this agent can read, it counts as nothing: %s", path, no)
            self._unread.append(str(path))
            return
        if boot == self._boot_id:
            self._shares[share.partition] = share
        elif not self._looks_only:
            with suppress(
                OSError
            ):  # what it named ended with its boot; if the file stays, it counts as nothing
                path.unlink()


def _share(row: dict[str, Any]) -> tuple[str, HeldShare]:
    boot = row.pop("boot_id")
    share = HeldShare(**{**row, "before": tuple(row.get("before", ()))})
    for known in fields(HeldShare):
        if type(getattr(share, known.name)) is not _TYPES[str(known.type)]:
            raise ValueError(f"{known.name} has the wrong type")
    return boot, share


def write_file(path: Path, row: dict[str, Any]) -> None:
    """Replace a file at once: after a crash it is the old or the new one, never half of it."""
    draft = path.with_suffix(".new")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(row, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _settle(path.parent)


def _settle(folder: Path) -> None:
    """Bring the names in a folder to disk."""
    if not folder.is_dir():
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
