"""What came of a run, request by request, and its history as an anonymous trace."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from portal.common.errors import Conflict, NotFound
from portal.lab.models import LabRun, LabState
from portal.lab.services import run_of
from portal.teams.selectors import Rights
from scheduler.replay.history import History, changed, history_from_json, what_if_from
from scheduler.replay.lab import most_changed


@dataclass(frozen=True, slots=True)
class TracedWait:
    """What a policy version did to one request. ``wait_s`` None: it never started.

    ``overtaken_by`` says by team how many requests that came later started first while it waited.
    """

    version: int
    name: str
    wait_s: int | None
    evictions: int
    overtaken_by: tuple[tuple[str, int], ...]


def traced(rights: Rights, uid: str, name: str) -> list[TracedWait]:
    """Return what each version did to a request. Raises NotFound, and Conflict before the end."""
    row = _done(rights, uid)
    history = _played_history(row)
    place = next((at for at, known in enumerate(history.names) if known == name), None)
    if place is None:
        raise NotFound
    found = []
    for answer, played in zip(row.answers, json.loads(gzip.decompress(row.played or b"")), strict=True):
        at = {number: index for index, number in enumerate(played["row"])}.get(place)
        if at is None or not played["ended"][at]:
            found.append(TracedWait(answer["version"], answer["name"], None, 0, ()))
            continue
        # Rows are in the order in which they came.
        later = range(at + 1, len(played["row"]))
        ahead = Counter(
            history.teams[history.claims[played["row"][other]].team_id - 1]
            for other in later
            if played["ended"][other] and played["started"][other] < played["started"][at]
        )
        found.append(
            TracedWait(
                answer["version"], answer["name"], played["wait"][at], played["evictions"][at],
                tuple(sorted(ahead.items(), key=lambda one: (-one[1], one[0]))),
            )
        )  # fmt: skip
    return found


def changed_most(row: LabRun) -> list[tuple[str, str, list[int]]]:
    """Return the requests whose waits differ most between versions: name, team, seconds waited in each version."""
    if row.changed_most is None:  # done before it was kept
        return most_changed(_played_history(row), json.loads(gzip.decompress(row.played or b"")))
    return [(name, team, waits) for name, team, waits in row.changed_most]


def answers_of(row: LabRun) -> list[dict[str, Any]]:
    """Return what came of each version; what was not looked at when the run was made is None."""
    return [{"promises": None, "energy": None, **answer} for answer in row.answers]


def anonymous_trace(rights: Rights, uid: str) -> Iterator[str]:
    """Return the history of a run as CSV that ``scheduler.replay`` reads: no names, no dates. Raises Conflict.

    Seconds count from the beginning of the period, teams are t1, t2, … in the order in which they come, GPUs are
    boards, of which a slice counts as a whole one. ``est_duration_s`` is what was asked for.
    """
    run_of(rights, uid)
    data = LabRun.objects.values_list("history", flat=True).get(uid=uid)
    if not data:
        raise Conflict(_("The run has not read its history yet. Come back once it runs."))
    history = history_from_json(gzip.decompress(data))
    return _rows(history)


def _rows(history: History) -> Iterator[str]:
    yield _line(("seq", "submit_s", "duration_s", "gpus", "vc", "est_duration_s"))
    teams: dict[int, str] = {}
    for number, (claim, ran_s) in enumerate(zip(history.claims, history.ran_s, strict=True), 1):
        team = teams.setdefault(claim.team_id, f"t{len(teams) + 1}")
        at = max(int((claim.queued_at - history.since).total_seconds()), 0)
        yield _line((number, at, ran_s, claim.count * max(claim.nodes, 1), team, claim.duration_s))


def _line(cells: tuple[Any, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _done(rights: Rights, uid: str) -> LabRun:
    row = run_of(rights, uid)
    if row.state != LabState.DONE:
        raise Conflict(_("The run is not done, so there is nothing to look at yet."))
    return row


def _played_history(row: LabRun) -> History:
    return changed(
        history_from_json(gzip.decompress(row.history or b"")), what_if_from(row.what_if), row.seed
    )
