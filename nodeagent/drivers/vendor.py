"""What drivers over a vendor's tool share: calling it, reading its numbers, the share book, the plain verbs."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_DNS, uuid5

from nodeagent import notices
from nodeagent.drivers import errors
from nodeagent.drivers.base import ProcessFact, Shape, Tenant
from nodeagent.drivers.errors import DriverUnavailableError, NotOfferedError, NvmlLikeError
from nodeagent.protocol.boards import UnknownBoardError, board
from nodeagent.protocol.messages import DeviceFact, PartitionFact
from nodeagent.shell import ProgramError, Shell

log = logging.getLogger(__name__)

WHOLE: Final = 1000
MIB: Final = 1024 * 1024
Read = Callable[[str], str]

_SPACE = uuid5(NAMESPACE_DNS, "shares.berth.invalid")
_WORDS: Final = (
    (errors.NO_PERMISSION, re.compile(r"permission|no_perm|not permitted|privilege|\broot\b|\bsudo\b", re.I)),
    (errors.IN_USE, re.compile(r"busy|in use|being used|occupied|running process", re.I)),
    (errors.INSUFFICIENT_RESOURCES, re.compile(r"insufficient|not enough|no (more )?resource|exceed", re.I)),
    (errors.NOT_SUPPORTED, re.compile(r"not.support|unsupported", re.I)),
)
_JSON = re.compile(r"^[ \t]*[\[{]", re.MULTILINE)
_NUMBER = re.compile(r"^\s*([-+]?\d{1,15}(?:\.\d{1,9})?)\s*(?:%|[A-Za-z]{1,4})?\s*$")


def number(value: object) -> float | None:
    """Return the figure in what a tool printed ("42", 42, "42 W", {"value": 42}), None for anything else."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e15 else None
    found = _NUMBER.match(value) if isinstance(value, str) else None
    return float(found[1]) if found else None


def whole(value: object) -> int | None:
    """Return a figure as a whole number that is not negative, None when it is not one."""
    figure = number(value)
    return None if figure is None or figure < 0 else int(figure)


def bounded(value: float | None, low: float, high: float) -> float | None:
    """Return a measurement when it can be true, None when it cannot."""
    return value if value is not None and low <= value <= high else None


def clean(value: object, longest: int = 200) -> str:
    """Return a name that a tool printed as text that the protocol carries: printable, on one line."""
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return "".join(c for c in text if c.isprintable()).strip()[:longest]


def model_of(product: str, otherwise: str) -> str:
    """Return the id of a board in the table of boards, the tool's own name where the table lacks it."""
    try:
        return board(product).id
    except UnknownBoardError:
        return product or otherwise


def code_of(said: str) -> int:
    """Return the NVML number that a tool's refusal comes closest to."""
    return next((code for code, words in _WORDS if words.search(said)), errors.UNKNOWN)


class Tool:
    """One program of a vendor. Its refusals become NvmlLikeError with what it said."""

    def __init__(self, shell: Shell, *argv: str) -> None:
        self.argv = argv
        self.name = " ".join(argv)
        self.version = "unknown version"
        self._shell = shell

    def run(self, *words: str) -> str:
        """Return what the program printed; raises NvmlLikeError when it is missing, fails or hangs."""
        try:
            done = self._shell.run([*self.argv, *words])
        except ProgramError as no:
            code = errors.TIMEOUT if "did not answer" in str(no) else errors.DRIVER_NOT_LOADED
            raise NvmlLikeError(code, str(no)) from no
        if not done.is_ok:
            said = clean(done.said.replace("\n", " "), 300)
            raise NvmlLikeError(code_of(said), f"{self.name} {' '.join(words)} failed: {said}")
        return done.out

    def json(self, *words: str) -> Any:
        """Return what the program printed as JSON; lines before it are left out (tools print warnings there)."""
        out = self.run(*words).rstrip()
        for start in islice(_JSON.finditer(out), 20):
            try:
                value, end = json.JSONDecoder().raw_decode(out, start.end() - 1)
            except (ValueError, RecursionError):
                continue
            if end == len(out):
                return value
        raise self.unreadable(words, "no JSON")

    def unreadable(self, words: Iterable[str], why: str) -> NvmlLikeError:
        """Return the refusal for output that this driver does not know."""
        return NvmlLikeError(
            errors.UNKNOWN,
            f"{self.name} ({self.version}) answered `{' '.join(words)}` in a form that this agent does not know "
            f"({why}); use a version named in docs/vendors.md, or report the output",
        )


def opened(tool: Tool, probe: Callable[[], str]) -> None:
    """Set a tool's version by asking for it; raises DriverUnavailableError when the tool does not answer."""
    try:
        tool.version = clean(probe(), 60) or "unknown version"
    except NvmlLikeError as no:
        raise DriverUnavailableError(no.detail) from no


@dataclass(frozen=True, slots=True)
class Share:
    """What was handed out of a card. ``handle`` is the tool's name for it, ``made`` its size in the tool's terms.

    A share without handle is only asked for: ``before`` are the handles that stood then, so that after a crash
    what is new can be told from what is not ours. ``is_idle``: nobody's any more, but the card still has it.
    """

    partition: str
    device: str
    mode: str
    owner: str
    start: int = 0
    size: int = 0
    share_milli: int = 0
    memory_mib: int = 0
    profile: str = ""
    handle: str = ""
    made: str = ""
    before: tuple[str, ...] = ()
    cgroup: str = ""
    is_idle: bool = False


class ShareBook:
    """Who holds what, one small file each, in a folder that a reboot empties: cards do not remember owners.

    Files of another boot are removed. A file that cannot be read counts as nothing and is named in the log once.
    """

    def __init__(self, folder: Path, boot_id: str) -> None:
        """Read the book; raises DriverUnavailableError when the folder cannot be used."""
        self._folder, self._boot_id = folder, boot_id
        self._lock = threading.Lock()
        self._shares: dict[str, Share] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.json")):
                self._recall(path)
        except OSError as no:
            raise DriverUnavailableError(f"the share book {folder} cannot be used: {no}") from no

    def on(self, device: str) -> list[Share]:
        """Return what is handed out of one device, in order of names."""
        with self._lock:
            found = [share for share in self._shares.values() if share.device == device]
        return sorted(found, key=lambda share: share.partition)

    def get(self, partition: str) -> Share | None:
        """Return one entry."""
        return self._shares.get(partition)

    def put(self, share: Share) -> None:
        """Write an entry to disk, then believe it; raises NvmlLikeError when the disk refuses."""
        path = self._path(share.partition)
        draft = path.with_suffix(".new")
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump({"boot_id": self._boot_id, **asdict(share)}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as no:
            raise NvmlLikeError(errors.UNKNOWN, f"the share book cannot be written: {no}") from no
        with self._lock:
            self._shares[share.partition] = share

    def drop(self, partition: str) -> None:
        """Remove an entry; gone already is success."""
        try:
            self._path(partition).unlink(missing_ok=True)
        except OSError as no:
            raise NvmlLikeError(errors.UNKNOWN, f"the share book cannot be written: {no}") from no
        with self._lock:
            self._shares.pop(partition, None)

    def _path(self, partition: str) -> Path:
        return self._folder / f"{hashlib.sha256(partition.encode()).hexdigest()[:32]}.json"

    def _recall(self, path: Path) -> None:
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            boot = body.pop("boot_id")
            share = Share(**{**body, "before": tuple(body["before"])})
            if any(type(getattr(share, f.name)).__name__ != str(f.type).split("[")[0] for f in fields(Share)):
                raise ValueError("a field has the wrong type")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as no:
            log.warning("%s is not an entry of the share book and is ignored: %s", path, no)
            return
        if boot != self._boot_id:
            path.unlink(missing_ok=True)
        else:
            self._shares[share.partition] = share


class VendorDriver(ABC):
    """The verbs that are the same for every vendor whose tool is a program. Cards stand in ``_facts``."""

    name = ""
    version = ""
    is_blocking = True

    def __init__(self, boot_id: str, book: ShareBook, read: Read) -> None:
        self._boot_id = boot_id
        self._book, self._read = book, read
        self._facts: dict[str, DeviceFact] = {}

    def boot_id(self) -> str:
        """Return the boot of the host."""
        return self._boot_id

    def inventory(self) -> list[DeviceFact]:
        """Return the cards as they were when the agent started."""
        return list(self._facts.values())

    @abstractmethod
    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the processes on a partition."""

    def set_mig_mode(self, device: str, enabled: bool) -> int:
        """Refuse: these cards have no such mode."""
        raise NotOfferedError(f"{self.name} cards have no MIG mode to switch; ask for a mode that they list")

    def attach(self, partition: str, tenant: Tenant) -> None:
        """Check that the partition stands; there is no daemon to start."""
        self._share(partition)

    def confine(self, partition: str, cgroup: str) -> None:
        """Remember whose processes belong to it; what it may use was fixed when it was made."""
        share = self._share(partition)
        if share.cgroup != cgroup:
            self._book.put(replace(share, cgroup=cgroup))

    def detach(self, partition: str, *, kill: bool) -> None:  # noqa: B027 - nothing to do is the rule here
        """Nothing to stop: the driver starts nothing for a tenant, and its runtime ends its processes."""

    def tell(self, partition: str, why: str) -> None:
        """Signal the processes that listen for it."""
        called = notices.call(process.pid for process in self.processes(partition))
        log.info("told %d process(es) on %s that their lease ends (%s)", len(called), partition, why)

    def power(self) -> str:
        """Say that these nodes cannot be put to sleep."""
        return "unsupported"

    def close(self) -> None:
        """Nothing is held open between calls."""

    def set_power(self, *, asleep: bool) -> None:
        """Refuse to sleep; being awake is no change."""
        if asleep:
            raise NotOfferedError(
                f"nodes with {self.name} cards cannot sleep in this version; leave them awake"
            )

    def _narrow(self, offer: frozenset[str] | None) -> None:
        """Leave only the modes that the operator offers; None is all that the cards can do."""
        if offer is None:
            return
        for uuid, fact in list(self._facts.items()):
            taken = {m: f"the operator does not offer {m} on this node" for m in fact.modes if m not in offer}
            modes = tuple(mode for mode in fact.modes if mode in offer)
            self._facts[uuid] = replace(fact, modes=modes, refusals={**fact.refusals, **taken})

    def _fact(self, device: str) -> DeviceFact:
        if device not in self._facts:
            raise NvmlLikeError(errors.NOT_FOUND, f"{device} is not on this node")
        return self._facts[device]

    def _share(self, partition: str) -> Share:
        share = self._book.get(partition)
        if share is None:
            raise NvmlLikeError(errors.NOT_FOUND, f"{partition} does not stand here")
        return share

    def _require_offered(self, fact: DeviceFact, shape: Shape) -> None:
        if shape.mode not in fact.modes:
            usable = ", ".join(fact.modes) or "nothing"
            raise NotOfferedError(
                fact.refusals.get(shape.mode)
                or f"{fact.model} cards offer {usable} here, not {shape.mode or 'a shape without mode'}"
            )

    def _inside(self, pid: int, cgroup: str) -> bool:
        """Say whether a process runs in a cgroup (absolute, below /sys/fs/cgroup) or below it."""
        try:
            lines = self._read(f"/proc/{pid}/cgroup").splitlines()
        except OSError:
            return False
        path = next((line.partition("0::")[2] for line in lines if line.startswith("0::")), "")
        wanted = cgroup.removeprefix("/sys/fs/cgroup").rstrip("/")
        return bool(wanted) and (path == wanted or path.startswith(f"{wanted}/"))


def part_fact(share: Share) -> PartitionFact:
    """Return an entry of the book as the agent reports it."""
    return PartitionFact(share.partition, share.device, share.profile, share.start, share.size, share.owner)


def share_name(device: str, kind: str, owner: str) -> str:
    """Return the name of a share: another for each owner, so that a stale name never means the next tenant."""
    return f"{kind.upper()}-{uuid5(_SPACE, f'{device}/{kind}/{owner}')}"
