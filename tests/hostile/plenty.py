"""How much is thrown, by which seed, and what came of it.

``make test`` throws some thousand inputs with a fixed seed; ``make hostile`` a hundred thousand:
``BERTH_HOSTILE_INPUTS`` says how many in all, ``BERTH_HOSTILE_SEED`` with which seed. With ``BERTH_HOSTILE_REPORT``
each surface adds one line of JSON to that file.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

FEW = 1_000
INPUTS = int(os.environ.get("BERTH_HOSTILE_INPUTS") or FEW)
SEED = int(os.environ.get("BERTH_HOSTILE_SEED") or 1)
IS_FEW = INPUTS <= FEW


def some(values: Iterable[T], nth: int) -> list[T]:
    """Every fifth of these values, beginning with another one for each ``nth`` field; all in ``make hostile``.

    So a field meets a fifth of them here, and each value a fifth of the fields.
    """
    return list(values) if not IS_FEW else [v for at, v in enumerate(values) if (at + nth) % 5 == 0]


class Surface:
    """One surface's share of the inputs: its random source, what was answered how often, what went wrong."""

    def __init__(self, name: str, part: float) -> None:
        self.name, self.count = name, max(1, int(INPUTS * part))
        self.rng = random.Random(f"{SEED}:{name}")
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []

    def __enter__(self) -> Surface:
        self._began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        took_s = round(time.monotonic() - self._began, 1)
        line = {
            "surface": self.name, "seed": SEED, "inputs": self.answers.total(), "took_s": took_s,
            "answers": dict(sorted(self.answers.items())), "wrong": len(self.wrong),
        }  # fmt: skip
        if at := os.environ.get("BERTH_HOSTILE_REPORT"):
            with open(at, "a") as report:
                report.write(json.dumps(line) + "\n")
        if kind is None:
            assert not self.wrong, f"{len(self.wrong)} of {self.count}:\n" + "\n".join(self.wrong[:10])
            assert self.answers.total() >= self.count

    def note(self, answer: Any, sent: object, *, is_wrong: bool, told: object = "") -> None:
        """Count one answer; a wrong one is kept with what was sent."""
        self.answers[str(answer)] += 1
        if is_wrong:
            self.wrong.append(f"{answer} to {str(sent)[:600]!r}: {str(told)[:300]!r}")
