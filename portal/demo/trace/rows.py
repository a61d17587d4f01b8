"""Rows of the openb pod lists (alibaba/clusterdata, cluster-trace-gpu-v2023), read strictly."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_GPUS, WHOLE_MILLI, LAST_SECOND = 64, 1000, 10**10
NEEDED = ("name", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time")


class TraceError(Exception):
    """A file that cannot be used; the sentence names file, line and column."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One row. Times in seconds of the trace; ``gpu_milli`` per GPU, below 1000 only for a single one."""

    name: str
    num_gpu: int
    gpu_milli: int
    gpu_specs: tuple[str, ...]
    qos: str
    created_s: int
    deleted_s: int

    @property
    def lifetime_s(self) -> int:
        """Return how long the pod lived in the trace."""
        return self.deleted_s - self.created_s


def read_pods(path: Path, *, limit: int | None = None) -> list[Pod]:
    """Return the rows in arrival order, at most ``limit`` of them; raises TraceError at the first bad one.

    Rows of equal creation time stay in the order of the file.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: byte {error.start} is not UTF-8 text") from error
    pods = sorted(_pods(path, text), key=lambda pod: pod.created_s)
    if not pods:
        raise TraceError(f"{path}, line 2: there is no row below the header")
    return pods if limit is None else pods[:limit]


def _pods(path: Path, text: str) -> Iterator[Pod]:
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(lines, [])
        columns = _columns(path, header)
        seen: set[str] = set()
        for cells in lines:
            pod = _Line(path, lines.line_num, header, columns, cells).pod()
            if pod.name in seen:
                raise _wrong(path, lines.line_num, "name", f"{pod.name!r} stands twice")
            seen.add(pod.name)
            yield pod
    except csv.Error as error:
        raise TraceError(f"{path}, line {lines.line_num}: not a line of CSV ({error})") from error


def _columns(path: Path, header: Sequence[str]) -> dict[str, int]:
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise TraceError(f"{path}, line 1: the column {missing[0]!r} is missing; the list needs {NEEDED}")
    return {name: header.index(name) for name in NEEDED}


@dataclass(frozen=True, slots=True)
class _Line:
    path: Path
    number: int
    header: Sequence[str]
    columns: dict[str, int]
    cells: Sequence[str]

    def pod(self) -> Pod:
        if len(self.cells) != len(self.header):
            raise TraceError(
                f"{self.path}, line {self.number}: {len(self.cells)} cells where the header has "
                f"{len(self.header)} (column {min(len(self.cells), len(self.header)) + 1})"
            )
        num_gpu = self._whole("num_gpu", MOST_GPUS)
        milli = self._whole("gpu_milli", WHOLE_MILLI)
        if num_gpu and (milli == 0 or (num_gpu > 1 and milli != WHOLE_MILLI)):
            raise self._wrong("gpu_milli", f"{milli} does not go with {num_gpu} GPU(s)")
        created = self._whole("creation_time", LAST_SECOND)
        deleted = self._whole("deletion_time", LAST_SECOND)
        if deleted < created:
            raise self._wrong("deletion_time", "it was deleted before it was created")
        specs = tuple(dict.fromkeys(part for part in self._text("gpu_spec").split("|") if part))
        name = self._text("name")
        if not name:
            raise self._wrong("name", "it is empty")
        return Pod(name, num_gpu, milli, specs, self._text("qos"), created, deleted)

    def _text(self, column: str) -> str:
        return self.cells[self.columns[column]].strip()

    def _whole(self, column: str, most: int) -> int:
        text = self._text(column)
        if not (text.isascii() and text.isdecimal() and len(text) <= 12 and int(text) <= most):
            raise self._wrong(column, f"{text[:40]!r} is not a whole number from 0 to {most}")
        return int(text)

    def _wrong(self, column: str, why: str) -> TraceError:
        return _wrong(self.path, self.number, column, why)


def _wrong(path: Path, number: int, column: str, why: str) -> TraceError:
    return TraceError(f"{path}, line {number}, column {column!r}: {why}")
