"""What ready shares lacked when they were looked at: told while it is so, and for a while after it was put right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from nodeagent.protocol.fault_rules import FaultRules, told
from nodeagent.protocol.messages import HealthFact

NS: Final = 1_000_000_000
# As long as an event without a state of its own (faults.QUIET_NS).
TOLD_NS: Final = 600 * NS


@dataclass(frozen=True, slots=True)
class ShareDefect:
    """Something that a share needs and that was not there: a code of the table of faults and a sentence.

    ``is_mended``: it is there again; else it is looked for at each look.
    """

    code: str
    detail: str
    is_mended: bool = True


@dataclass(frozen=True, slots=True)
class _Told:
    lack: ShareDefect
    until_ns: int
    wall_ns: int


class Repairs:
    """Remembers lacks by device and by whose share they are of. May be asked from any thread."""

    def __init__(self, rules: FaultRules, clock_ns: Callable[[], int], wall_ns: Callable[[], int]) -> None:
        """Take the table of faults, a clock in ns that never goes back, and one that tells people the time."""
        self._rules, self._clock_ns, self._wall_ns = rules, clock_ns, wall_ns
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str, str], _Told] = {}

    def note(self, device: str, whose: str, lack: ShareDefect) -> None:
        """Tell a lack; what was mended again is told for as long again."""
        with self._lock:
            self._told[device, whose, lack.code] = _Told(lack, self._clock_ns() + TOLD_NS, self._wall_ns())

    def fine(self, device: str, whose: str, code: str) -> None:
        """Take back that something is lacking: it is there, whoever put it right. What was mended is told on."""
        with self._lock:
            known = self._told.get((device, whose, code))
            if known is not None and not known.lack.is_mended:
                del self._told[device, whose, code]

    def over(self, device: str, whose: str) -> None:
        """Forget everything about a share that has ended."""
        with self._lock:
            for key in [key for key in self._told if key[:2] == (device, whose)]:
                del self._told[key]

    def facts(self) -> list[HealthFact]:
        """Return one fact per device and code."""
        now = self._clock_ns()
        with self._lock:
            for key, one in list(self._told.items()):
                if one.lack.is_mended and now >= one.until_ns:
                    del self._told[key]
            left = sorted(self._told.items(), key=lambda item: item[0])
        said: dict[tuple[str, str], list[str]] = {}
        for (device, _whose, code), one in left:
            said.setdefault((device, code), []).append(_sentence(one))
        return [
            told(self._rules.of(code), device, "; ".join(dict.fromkeys(sentences)))
            for (device, code), sentences in said.items()
        ]


def _sentence(one: _Told) -> str:
    if not one.lack.is_mended:
        return one.lack.detail
    at = datetime.fromtimestamp(one.wall_ns / NS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{one.lack.detail} at {at}"
