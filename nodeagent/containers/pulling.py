"""Fetches the images of jobs while their leases are still being prepared, a few at a time, one of each holder.

One event loop. Nothing is written down: after a restart an image is asked for again, and what is there already is not
fetched twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeagent.containers.boxes import LONGEST_PULL_S, LeaseContainers
from nodeagent.containers.cache import ImageCache
from nodeagent.containers.layouts import find_in_layout
from nodeagent.containers.words import ImageRefusedError, refusal_of
from nodeagent.protocol.images import DIGEST, ImageReference, image_of
from nodeagent.reconcile.lease_records import LeaseRecord
from nodeagent.runtimes.base import Key
from nodeagent.runtimes.names import stem_of
from nodeagent.workloads.entry import EntryRefusedError

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
LONGEST_WAIT_S: Final = 1800
MOST_KEPT: Final = 16 * 1024
_LAYER: Final = b"Copying blob "


@dataclass(frozen=True, slots=True)
class PulledImage:
    """An image that is on the node: by what Podman runs it, its digest ("" where it never had one), and its size."""

    id: str
    digest: str
    size_bytes: int = 0


@dataclass(slots=True)
class Pull:
    """One image on its way for one lease. ``layers`` are those begun, whose number nobody knows beforehand."""

    task: asyncio.Task[None] | None = None
    layers: set[bytes] = field(default_factory=set)
    is_begun: bool = False
    image: PulledImage | None = None
    refusal: ImageRefusedError | None = None

    @property
    def words(self) -> str:
        """Return how far it is, for people."""
        return f"{len(self.layers)} layers" if self.is_begun else "waits for another one"


class ImagePulls:
    """The images that leases of this node wait for."""

    def __init__(
        self,
        containers: LeaseContainers | None,
        folder: Path | None,
        done: Callable[[], None],
        cache: ImageCache | None = None,
    ) -> None:
        """``containers`` None: there are none on this host. ``done`` is called in the loop when a pull has ended.

        ``cache`` is told of every image that is used.
        """
        self._containers = containers
        self._cache = cache
        self._folder = folder
        self._done = done
        self._pulls: dict[Key, Pull] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        # One of each holder: whose images are slow waits for them alone.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def of(self, record: LeaseRecord) -> Pull:
        """Return the pull of a lease's image, begun if need be. Never waits."""
        pull = self._pulls.get(record.key)
        if pull is None:
            pull = self._pulls[record.key] = Pull()
            image = image_of(record.image)
            if self._containers is None:
                pull.refusal = ImageRefusedError("no_containers", "this node runs no containers")
            elif image is None:
                pull.refusal = ImageRefusedError("image", "this is no name of an image")
            else:
                work = self._fetch(self._containers, record, image, pull)
                pull.task = asyncio.get_running_loop().create_task(work)
        return pull

    def forget(self, keys: Sequence[Key]) -> None:
        """Stop what is under way for leases that are over."""
        for key in keys:
            pull = self._pulls.pop(key, None)
            if pull is not None and pull.task is not None:
                pull.task.cancel()

    @property
    def keys(self) -> list[Key]:
        """Return the leases whose images were asked for."""
        return list(self._pulls)

    async def close(self) -> None:
        """Stop everything."""
        tasks = [pull.task for pull in self._pulls.values() if pull.task is not None]
        self.forget(self.keys)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(
        self, containers: LeaseContainers, record: LeaseRecord, image: ImageReference, pull: Pull
    ) -> None:
        try:
            async with contextlib.AsyncExitStack() as turn:
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await turn.enter_async_context(self._turns[record.user])
                    await turn.enter_async_context(self._room)
                pull.is_begun = True
                async with asyncio.timeout(LONGEST_PULL_S):
                    pull.image = found = await self._get(containers, record, image, pull)
            if self._cache is not None:
                store = containers.store_of(record.user)
                self._cache.note(store, record.image, found.id, found.digest, found.size_bytes)
        except TimeoutError:
            late = "it was not there after {} minutes", LONGEST_PULL_S
            if not pull.is_begun:
                late = "others were still being fetched after {} minutes", LONGEST_WAIT_S
            pull.refusal = ImageRefusedError("image_slow", late[0].format(late[1] // 60))
        except EntryRefusedError as no:
            pull.refusal = ImageRefusedError("image", no.detail)
        except ImageRefusedError as no:
            pull.refusal = no
        except OSError as no:
            pull.refusal = ImageRefusedError("image", f"Podman cannot be started: {no}")
        if pull.refusal is not None:
            log.warning("no image %s for lease %s: %s", image.text, record.lease, pull.refusal.detail)
        self._done()

    async def _get(
        self, containers: LeaseContainers, record: LeaseRecord, image: ImageReference, pull: Pull
    ) -> PulledImage:
        """Return an image once it is here; raises ImageRefusedError, EntryRefusedError or OSError."""
        podman, wanted, is_exact = containers.podman, image.digest, bool(image.digest)
        name = image.text
        if not image.is_local:
            source = f"docker://{image.text}"
            if image.is_layout:
                found = await asyncio.to_thread(find_in_layout, self._folder, image)
                source, wanted, is_exact = found.source, found.digest, found.is_exact
            most_mib = self._cache.limit_mib if self._cache is not None else 0
            said = await _said(containers, record, podman.pull(source, most_mib), pull)
            name = said.split()[-1] if said.split() else ""
        words = (await _said(containers, record, podman.inspect(name), pull)).split()
        if not words:
            raise ImageRefusedError("image", "Podman does not say what it has fetched")
        size_bytes = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0
        digests = [one.rpartition("@")[2] for one in words[2:]]
        digest = next((one for one in digests if DIGEST.fullmatch(one)), "")
        # A registry's own digest may be that of a list of images for several kinds of machine: Podman checks that one.
        must_be = wanted if image.is_local or (image.is_layout and is_exact) else ""
        if must_be and must_be not in digests:
            raise ImageRefusedError("image_digest", f"the image here is {digest or 'without a digest'}")
        return PulledImage(words[0], wanted or digest, size_bytes)


async def _said(containers: LeaseContainers, record: LeaseRecord, words: list[str], pull: Pull) -> str:
    """Run a command of Podman and return what it said; raises ImageRefusedError, EntryRefusedError or OSError."""
    command = await asyncio.to_thread(containers.engine, record.user, stem_of(record.key), words)
    process = await asyncio.create_subprocess_exec(
        *command.words,
        env=dict(command.env),
        cwd=command.folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        out, said = await asyncio.gather(_follow(process.stdout, pull), _follow(process.stderr, pull))
        code = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGTERM)
            if command.unit:
                await asyncio.to_thread(containers.stop, command.unit)
    if code:
        raise refusal_of(said.decode(errors="replace"))
    return out.decode(errors="replace")


async def _follow(stream: asyncio.StreamReader, pull: Pull) -> bytes:
    """Read to the end, counting the layers that are named; returns the last that was said."""
    kept, rest = b"", b""
    while piece := await stream.read(4096):
        kept = (kept + piece)[-MOST_KEPT:]
        *lines, rest = (rest + piece)[-MOST_KEPT:].split(b"\n")
        pull.layers |= {
            line.split()[2] for line in lines if line.startswith(_LAYER) and len(line.split()) > 2
        }
    return kept
