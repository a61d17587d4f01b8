"""Jobs of a trace: what came when, how large, how long, of which team, and what people thought it would take."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scheduler.replay.trace_files import BadTrace, Row, TraceFault, rows, rows_of

NEEDED = ("seq", "submit_s", "duration_s", "gpus")
COLUMN, PERFECT, NONE, LEARNED = "column", "perfect", "none", "learned"
MOST = 1_000_000
MOST_SECONDS = 10**9  # thirty years: instants of what is played stay in the calendar


@dataclass(frozen=True, slots=True)
class Jobs:
    """The trace by submit time and seq. Seconds; ``estimate`` is 0 where there is none."""

    submit: list[int]
    duration: list[int]
    gpus: list[int]
    team: list[int]
    estimate: list[float] | None
    teams: tuple[str, ...]


def read(path: Path, most: int) -> Jobs:
    """The jobs of a CSV file; ``most`` is how many GPUs there are. Raises BadTrace."""
    return _jobs(rows(path, NEEDED), path, most)


def jobs_of_text(text: str, name: str, most: int) -> Jobs:
    """The jobs of the text of a CSV file that refusals call ``name``. Raises BadTrace."""
    path = Path(name)
    return _jobs(rows_of(text.removeprefix("\ufeff").splitlines(), path, NEEDED), path, most)


def _jobs(lines: Iterable[Row], path: Path, most: int) -> Jobs:
    found, teams = [], {"": 0}
    has_estimates, seen = False, set[int]()
    for row in lines:
        seq = row.integer("seq")
        if seq in seen:
            raise row.fault("twice", "seq", seq=seq)
        seen.add(seq)
        has_estimates = has_estimates or "est_duration_s" in row.cells
        team = teams.setdefault(row.optional("vc"), len(teams))
        found.append(
            (
                row.integer("submit_s", most=MOST_SECONDS),
                seq,
                row.integer("duration_s", most=MOST_SECONDS),
                _gpus(row, most),
                team,
                _estimate(row),
            )
        )
    if not found:
        raise TraceFault("no_job", path=path)
    found.sort()
    submit, _, duration, gpus, team_of, estimate = (list(column) for column in zip(*found, strict=True))
    return Jobs(submit, duration, gpus, team_of, estimate if has_estimates else None, tuple(teams))


def _gpus(row: Row, most: int) -> int:
    count = row.integer("gpus", least=1)
    if count > most:
        raise row.fault("too_large", "gpus", gpus=count, most=most)
    return count


def _estimate(row: Row) -> float:
    return row.number("est_duration_s") if row.optional("est_duration_s") else 0.0


def drawn(jobs: Jobs, seed: int) -> list[float]:
    """Estimates with the error profile that the authors of Helios state, as in the column of the shared trace.

    10 % are within 10 %, 40 % off by 10 to 50 %, 20 % by 50 to 100 %, 20 % by 1 to 10 times, 10 % by 10 to 100
    times, either way, at least one second.
    """
    draw = random.Random(seed)  # noqa: S311 - estimates of an experiment, which must come out the same again
    found = []
    for duration in jobs.duration:
        which = draw.random()
        bounds = next(bounds for most, bounds in _ERRORS if which < most)
        off = draw.uniform(*bounds) * draw.choice((-1, 1))
        found.append(float(max(1, int(duration * (1 + off)))))
    return found


# Which part of all estimates is off by how much.
_ERRORS = ((0.1, (0.0, 0.1)), (0.5, (0.1, 0.5)), (0.7, (0.5, 1.0)), (0.9, (1.0, 10.0)), (1.1, (10.0, 100.0)))


def estimates_from(path: Path, jobs: Jobs, source: str) -> list[float] | None:
    """What people say their jobs will take; None for nothing. Raises BadTrace."""
    if source == NONE:
        return None
    if source == PERFECT:
        return [float(duration) for duration in jobs.duration]
    if jobs.estimate is None:
        raise BadTrace(f"{path}, line 1: no column est_duration_s; use --estimates none or perfect.")
    return jobs.estimate
