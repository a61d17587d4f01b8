"""What the drill was promised: one line for each acknowledged call, written before anything else is done with it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class DrillLedger:
    """The driver's own file of acknowledgements, and what it sent without getting one."""

    def __init__(self, path: Path) -> None:
        self._out = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self.acknowledged: list[Entry] = []
        self.sends: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self.is_tolerant = False  # while failures are ordered
        self.by_kind: dict[str, list[Entry]] = defaultdict(list)

    def note(self, kind: str, who: str, **promise: Any) -> Entry:
        """Keep what a 2xx answer promised."""
        entry = {"kind": kind, "who": who, "heard_at": datetime.now(UTC).isoformat(), **promise}
        entry["heard_mono"] = time.monotonic()
        with self._lock:
            self._out.write(json.dumps(entry, separators=(",", ":")) + "\n")
            self._out.flush()
            self.acknowledged.append(entry)
            self.by_kind[kind].append(entry)
        return entry

    def send(self, name: str) -> None:
        """Count a call that may have taken effect, whatever comes back."""
        with self._lock:
            self.sends[name] += 1

    def answer(self, status: int, what: str, body: Any) -> None:
        """Count an answer; 0 is none. Unexpected failures of the portal are kept word by word."""
        with self._lock:
            self.answers[str(status)] += 1
            if status >= 500 and status != 503 and not self.is_tolerant and len(self.failures) < 200:
                now = datetime.now(UTC)
                self.failures.append(f"{now:%H:%M:%S} {status} {what}: {json.dumps(body)[:300]}")

    def close(self) -> None:
        self._out.close()
