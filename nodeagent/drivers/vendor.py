"""What drivers over a vendor's tool share: calling it, reading its numbers, the plain verbs."""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import NAMESPACE_DNS, uuid5

from nodeagent.drivers import errors
from nodeagent.drivers.base import PartitionShape, ProcessFact, Tenant
from nodeagent.drivers.boot_devices import BootDevices
from nodeagent.drivers.errors import DriverUnavailableError, NotOfferedError, NvmlLikeError
from nodeagent.drivers.shares import HeldShare, ShareBook
from nodeagent.host import notices
from nodeagent.host.shell import ProgramError, Shell
from nodeagent.protocol.boards import UnknownBoardError, board
from nodeagent.protocol.messages import DeviceFact, DeviceSample, HealthFact

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
_UNRUN: Final = {
    "did not answer": errors.TIMEOUT,
    "is not installed": errors.LIBRARY_NOT_FOUND,
    "Permission denied": errors.NO_PERMISSION,
}
LOST: Final = "device_lost"
LATE: Final = "card_late"
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


class VendorTool:
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
            code = next(
                (code for words, code in _UNRUN.items() if words in str(no)), errors.DRIVER_NOT_LOADED
            )
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


def opened(tool: VendorTool, probe: Callable[[], str]) -> None:
    """Set a tool's version by asking for it; raises DriverUnavailableError when the tool does not answer."""
    try:
        tool.version = clean(probe(), 60) or "unknown version"
    except NvmlLikeError as no:
        raise DriverUnavailableError.by(no.code, no.detail) from no


class ToldDevice(Protocol):
    """What a tool tells of a device at one moment; None is unknown."""

    @property
    def util_percent(self) -> float | None:
        """How busy the device is."""

    @property
    def memory_used_mib(self) -> int | None:
        """How much of its memory is in use."""

    @property
    def power_w(self) -> float | None:
        """What it draws."""

    @property
    def temperature_c(self) -> float | None:
        """How hot it is."""


def sample_of(uuid: str, told: ToldDevice | None, tool: str) -> DeviceSample:
    """Return the sample of a device from what a tool told of it; of a device that is not listed all is unknown."""
    if told is None:
        return DeviceSample(uuid, None, None, None, None, source="unavailable")
    return DeviceSample(
        device=uuid,
        util_percent=told.util_percent,
        memory_used_mib=told.memory_used_mib,
        power_w=told.power_w,
        temperature_c=told.temperature_c,
        source="unavailable" if told.util_percent is None else tool,
    )


def lost(uuid: str, said: str) -> HealthFact:
    """Return the fact that a device which was here is not listed any more."""
    return HealthFact(uuid, LOST, "critical", said, "reboot_node")


class VendorDriver(ABC):
    """The verbs that are the same for every vendor whose tool is a program. Devices stand in ``_facts``."""

    name = ""
    version = ""
    is_blocking = True

    def __init__(self, boot_id: str, run_dir: Path, read: Read, *, looks_only: bool = False) -> None:
        """Read what is noted of this boot below ``run_dir``; ``looks_only``: nothing is written there."""
        self._boot_id, self._read = boot_id, read
        self._book = ShareBook(run_dir / self.name, boot_id, looks_only=looks_only)
        self._boot_devices = BootDevices(run_dir / f"{self.name}.cards.json", boot_id, looks_only=looks_only)
        self._facts: dict[str, DeviceFact] = {}
        # What did not answer at the start and may yet: devices by index, else by name, each with a sentence.
        self.unanswered: dict[int | str, str] = {}
        self._missed: set[str] = set()

    def boot_id(self) -> str:
        """Return the boot of the host."""
        return self._boot_id

    def inventory(self) -> list[DeviceFact]:
        """Return the devices as they were when the agent started."""
        return list(self._facts.values())

    @abstractmethod
    def processes(self, partition: str) -> list[ProcessFact]:
        """Return the processes on a partition."""

    def tenants(self, partition: str) -> list[ProcessFact]:
        """Return those processes that may be signalled as the tenant's."""
        return self.processes(partition)

    @abstractmethod
    def complaints(self) -> list[HealthFact]:
        """Return what the devices say about their health; raises NvmlLikeError when the tool does not tell."""

    def health(self) -> list[HealthFact]:
        """Return what the devices complain about, and notes of who holds what that cannot be read.

        A device counts as lost, with the leases on it, when the tool left it out twice in a row: outputs have gaps.
        """
        try:
            said = self.complaints()
        except NvmlLikeError as no:
            return [_unsure(no.detail), *self._noted()]
        missed, self._missed = self._missed, {fact.device for fact in said if fact.code == LOST}
        gaps = self._missed - missed
        sure = [fact for fact in said if fact.code != LOST or fact.device not in gaps]
        words = "; ".join(fact.detail for fact in said if fact not in sure)
        return [*sure, *([_unsure(f"{words}; it is asked again")] if words else []), *self._noted()]

    def _noted(self) -> list[HealthFact]:
        """Return what this driver knows without asking: what was late at the start, and notes that cannot be read."""
        late = [
            HealthFact("", LATE, "warning", said) for said in ["; ".join(self.unanswered.values())] if said
        ]
        return [*late, *self._book.health()]

    def abandon(self, device: str, owner: str) -> None:
        """Forget what an owner had on a device that is lost; the driver runs nothing beside the devices."""
        for share in self._book.on(device):
            if share.owner == owner:
                self._book.drop(share.partition)

    def mig_mode(self, device: str) -> bool | None:
        """Return None: these devices have no such mode."""
        return None

    def set_mig_mode(self, device: str, enabled: bool) -> int:
        """Refuse: these devices have no such mode."""
        raise NotOfferedError(
            f"{self.name} devices have no MIG mode to switch; ask for a mode that they list"
        )

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
        called = notices.call((process.pid for process in self.tenants(partition)), self._read)
        log.info("told %d process(es) on %s that their lease ends (%s)", len(called), partition, why)

    def power(self) -> str:
        """Say that these nodes cannot be put to sleep."""
        return "unsupported"

    def close(self) -> None:  # noqa: B027 - nothing to do is the rule here
        """Nothing is held open between calls."""

    def set_power(self, *, asleep: bool) -> None:
        """Refuse to sleep; being awake is no change."""
        if asleep:
            raise NotOfferedError(
                f"nodes with {self.name} devices cannot sleep in this version; leave them awake"
            )

    @abstractmethod
    def _find(self) -> None:
        """List the devices and learn each of them; raises NvmlLikeError when the tool does not answer."""

    def _recall(self, fact: DeviceFact) -> bool:
        """Bring back what the driver itself knows of a device of this boot, or say that it cannot."""
        return True

    def _take_stock(self, offer: frozenset[str] | None, nothing: str) -> None:
        """Find the devices, keep those of this boot that are silent now, and narrow all to what is offered.

        Raises DriverUnavailableError when the tool does not answer, and with ``nothing`` when there is no device.
        """
        try:
            self._find()
        except NvmlLikeError as no:
            raise DriverUnavailableError.by(no.code, no.detail) from no
        self._remember()
        if not self._facts:
            why = "; ".join(self.unanswered.values()) or nothing
            raise DriverUnavailableError(why, waits_for=why)
        self._narrow(offer)

    def _remember(self) -> None:
        """Add the devices of this boot that did not answer now, so that their leases are kept, and note all."""
        taken = {fact.index for fact in self._facts.values()}
        for index, fact in self._boot_devices.known.items():
            if fact.uuid not in self._facts and index not in taken and self._recall(fact):
                log.warning("%s does not answer and is kept as it was earlier in this boot", fact.uuid)
                self._facts[fact.uuid] = fact
                self.unanswered.pop(index, None)
        self._boot_devices.keep(self._facts.values())

    def _note_late(self, what: str, no: NvmlLikeError) -> None:
        """Note a tool that did not answer in time; what it says otherwise, it will say again."""
        if no.code == errors.TIMEOUT:
            self.unanswered[what] = no.detail

    def _narrow(self, offer: frozenset[str] | None) -> None:
        """Leave only the modes that the operator offers; None is all that the devices can do."""
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

    def _share(self, partition: str) -> HeldShare:
        share = self._book.get(partition)
        if share is None:
            raise NvmlLikeError(errors.NOT_FOUND, f"{partition} does not stand here")
        return share

    def _require_offered(self, fact: DeviceFact, shape: PartitionShape) -> None:
        if shape.mode not in fact.modes:
            usable = ", ".join(fact.modes) or "nothing"
            raise NotOfferedError(
                fact.refusals.get(shape.mode)
                or f"{fact.model} devices offer {usable} here, not {shape.mode or 'a shape without mode'}"
            )


def _unsure(said: str) -> HealthFact:
    return HealthFact("", "tool_unreadable", "warning", said)


def share_name(device: str, kind: str, owner: str) -> str:
    """Return the name of a share: another for each owner, so that a stale name never means the next tenant."""
    return f"{kind.upper()}-{uuid5(_SPACE, f'{device}/{kind}/{owner}')}"
