"""The guards that are taken away one by one: which text, what instead, and the tests that have to notice."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("guards.toml")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard: the text ``was`` of ``file`` becomes ``now``; one of ``tests`` (files or nodes) must fail then."""

    number: int
    name: str
    file: str
    was: str
    now: str
    tests: tuple[str, ...]

    @property
    def is_migration(self) -> bool:
        """Whether a database made before does not have it."""
        return "/migrations/" in self.file

    def applied(self, root: Path) -> str:
        """Return the file's text with the guard taken away; raises ValueError unless it stands there exactly once."""
        text = (root / self.file).read_text()
        count = text.count(self.was)
        if count != 1:
            raise ValueError(f"{self.name}: its text stands {count} times in {self.file}, not once")
        return text.replace(self.was, self.now)

    def fingerprint(self, root: Path) -> str:
        """Return what a result depends on: the mutated file and the tests that are to notice."""
        parts = [self.applied(root), *((root / _file(test)).read_text() for test in self.tests)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def read() -> list[Mutant]:
    """Return the list in the order of the file, numbered from 1."""
    rows = tomllib.loads(LIST.read_text())["guard"]
    return [
        Mutant(number, row["name"], row["file"], row["was"], row["now"], tuple(row["tests"]))
        for number, row in enumerate(rows, start=1)
    ]


def _file(test: str) -> str:
    return test.partition("::")[0]
