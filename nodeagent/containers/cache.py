"""The images that jobs of this node have brought here, and the room that they may take together.

Holders keep their images in stores of their own; the limit is one for all of them. Beyond it the images that were used
longest ago go first: never one that a lease of this node is for, and never one that cannot be fetched again because it
was made here. What somebody fetches by hand is not known here, and is theirs to remove.

One event loop. What is known is one file, written anew with each change.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from nodeagent.containers.boxes import LeaseContainers
from nodeagent.host.clock import boot_clock
from nodeagent.host.files import put
from nodeagent.protocol.images import image_of
from nodeagent.protocol.messages import ImageFact, NodeImages
from nodeagent.reconcile.lease_records import GONE, NS, LeaseRecord
from nodeagent.workloads.entry import EntryRefusedError, start

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
MOST_TOLD: Final = 256
REMOVED_WITHIN_S: Final = 120
REFUSED_FOR_S: Final = 600
TIDYING: Final = "tidy"


@dataclass(frozen=True, slots=True)
class KeptImage:
    """An image in a store. ``names`` are those by which jobs asked for it, the newest last."""

    store: str
    id: str
    digest: str
    size_bytes: int
    names: tuple[str, ...]

    @property
    def can_come_again(self) -> bool:
        """Say whether it can be fetched again: one that was made on this node cannot."""
        return not any(image is None or image.is_local for image in map(image_of, self.names))


Remove = Callable[[KeptImage], Awaitable[bool]]


class ImageCache:
    """What is here, what is used, and what goes."""

    def __init__(
        self,
        file: Path,
        limit_mib: int,
        records: Callable[[], Iterable[LeaseRecord]],
        remove: Remove,
        clock: Callable[[], int] = boot_clock,
    ) -> None:
        """``limit_mib`` 0: no limit. ``records`` are the leases of this node, ``clock`` nanoseconds since boot.

        ``remove`` takes an image out of its store; it says False where that cannot be done now.
        """
        self.changed = asyncio.Event()
        self._file = file
        self.limit_mib = limit_mib
        self._records = records
        self._remove = remove
        self._clock = clock
        self._images = {(one.store, one.id): one for one in _read(file)}  # by last use, the newest at the end
        self._is_tidying = False
        self._refused_until: dict[tuple[str, str], int] = {}

    def note(self, store: str, name: str, image_id: str, digest: str, size_bytes: int) -> None:
        """Take down that a job uses an image of a store now."""
        before = self._images.pop((store, image_id), None)
        names = (*(one for one in (before.names if before else ()) if one != name), name)
        self._images[store, image_id] = KeptImage(store, image_id, digest, size_bytes, names)
        self._keep()

    @property
    def is_too_full(self) -> bool:
        """Say whether something should go, and could."""
        return self._next() is not None and not self._is_tidying

    async def tidy(self) -> None:
        """Remove what was used longest ago until the rest fits. Safe to call at any time: one call works at a time."""
        if self._is_tidying:
            return
        self._is_tidying = True
        try:
            while (image := self._next()) is not None:
                key = image.store, image.id
                if not await self._remove(image):
                    self._refused_until[key] = self._clock() + REFUSED_FOR_S * NS
                    continue
                # It may have been asked for again meanwhile: then it was noted anew, and is fetched again.
                if self._images.get(key) == image:
                    del self._images[key]
                    self._keep()
                log.info("image %s was removed: the images of this node took too much", image.names[-1])
        finally:
            self._is_tidying = False

    def _next(self) -> KeptImage | None:
        """Return what is to go next, None where all fits or nothing may go now."""
        if not self.limit_mib or self.used_mib <= self.limit_mib:
            return None
        now, used = self._clock(), {one.image for one in self._records() if one.image and one.phase != GONE}
        free = (
            one
            for key, one in self._images.items()
            if one.can_come_again and used.isdisjoint(one.names) and self._refused_until.get(key, 0) <= now
        )
        return next(free, None)

    @property
    def used_mib(self) -> int:
        """Return what all images take together; layers that two of them share count twice."""
        return sum(one.size_bytes for one in self._images.values()) // MIB

    def told(self, epoch: int) -> NodeImages:
        """Return what the portal is told: the images used last, and the figures of all."""
        newest = list(reversed(self._images.values()))[:MOST_TOLD]
        facts = tuple(
            ImageFact(one.names[-1], one.digest, -(-one.size_bytes // MIB), one.store) for one in newest
        )
        return NodeImages(epoch, facts, self.used_mib, self.limit_mib or None)

    def _keep(self) -> None:
        self.changed.set()
        try:
            put(self._file, json.dumps([asdict(one) for one in self._images.values()]), mode=0o600)
        except OSError as no:
            log.warning("what images are here could not be written down: %s", no)


def remover(containers: LeaseContainers) -> Remove:
    """Return what takes images out of their stores, as their holders, off the loop; a container's image stays."""

    def said(image: KeptImage, words: list[str]) -> str | None:
        """Run a command of Podman's and return what it printed, None where it failed."""
        command = containers.engine(image.store, TIDYING, words)
        with start(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as one:
            try:
                out = one.communicate(timeout=REMOVED_WITHIN_S)[0]
            except subprocess.TimeoutExpired:
                one.kill()
                containers.stop(command.unit)
                raise
        return None if one.returncode else out.decode(errors="replace")

    def remove(image: KeptImage) -> bool:
        podman = containers.podman
        try:
            tags = said(image, podman.tags(image.id))
            if tags is None:
                return False
            names = tags.split()
            if not set(names) <= _own_names(image):  # its holder has named it, who could not fetch that again
                return False
            # Podman removes none by its id that has several names.
            return said(image, podman.remove_image(*(names or [image.id]))) is not None
        except (EntryRefusedError, subprocess.TimeoutExpired) as no:
            log.warning("image %s could not be removed: %s", image.names[-1], no)
            return False

    return lambda image: asyncio.to_thread(remove, image)


def _own_names(image: KeptImage) -> set[str]:
    """Return the names that an image has in its store because jobs have used it: of a layout, Podman keeps the tag."""
    found = (image_of(name) for name in image.names)
    return {
        f"localhost/{one.tag or 'latest'}:latest" if one.is_layout else f"{one.name}:{one.tag or 'latest'}"
        for one in found
        if one is not None
    }


def _read(file: Path) -> list[KeptImage]:
    try:
        rows: list[dict[str, Any]] = json.loads(file.read_bytes())
        return [replace(KeptImage(**row), names=tuple(row["names"])) for row in rows]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as no:
        log.warning("%s cannot be read, so images of before are not counted: %s", file, no)
        return []
