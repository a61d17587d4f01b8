"""Learn from ended requests how long requests run, and write a prediction on those that wait or run.

Training happens in a short-lived process (``scheduler.training``); what it found is kept as plain numbers in a
``DurationModel``, which any worker applies with numpy alone. With too little history nothing is predicted, and
everything counts with the time asked for.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from datetime import datetime
from typing import Any

from django.db import IntegrityError

from portal.common.sql import execute, fetch, in_sql
from portal.leases.states import RequestState, WorkloadKind
from portal.policies.durations import current_model
from portal.policies.models import DurationModel
from scheduler.engine.learning.durations import Durations, durations_from
from scheduler.engine.learning.habits import EndedRequest, SubmittedRequest
from scheduler.engine.learning.lengths import LEAST, NEW, LengthRecord

log = logging.getLogger(__name__)
MOST = 20_000  # the newest ended requests that are learned from
MOST_AT_ONCE = 2_000
KEEP = 24  # models
TRAINING_S = 300
WORK = {value: at for at, value in enumerate(WorkloadKind.values)}
# What a request ran in all its leases; extras of an elastic one and the other nodes of a gang ran beside it.
PAST = (
    "SELECT r.id, r.team_id, r.author_id, r.flavor_id, r.name, r.work, r.cost_milli, r.duration_s,"  # noqa: S608 (our own states)
    " r.submitted_at, max(l.ended_at), sum(extract(epoch FROM l.ended_at - l.activated_at))::float,"
    " max(u.peak), r.count * greatest(r.nodes, 1), coalesce(r.predicted_s, 0)"
    f" FROM (SELECT * FROM leases_leaserequest WHERE state = '{RequestState.FULFILLED}' ORDER BY id DESC LIMIT %s) r"
    " JOIN leases_lease l ON l.request_id = r.id"
    " LEFT JOIN LATERAL (SELECT max(m.memory_max_mib) AS peak FROM telemetry_minuterollup m"
    " WHERE m.lease_id = l.id AND m.device_id IS NULL) u ON TRUE"
    " WHERE l.part = 0 AND l.activated_at IS NOT NULL AND l.ended_at IS NOT NULL"
    " GROUP BY r.id, r.team_id, r.author_id, r.flavor_id, r.name, r.work, r.cost_milli, r.duration_s,"
    " r.submitted_at, r.count, r.nodes, r.predicted_s ORDER BY r.id DESC"
)
UNFINISHED_STATES = (RequestState.QUEUED, RequestState.GRANTED)
OPEN_STATES = (RequestState.AWAITING_APPROVAL, *UNFINISHED_STATES)
# Those that have begun and not ended: what they ran so far, in leases before and in the one that lives.
UNFINISHED = (
    "SELECT r.team_id, r.count * greatest(r.nodes, 1),"  # noqa: S608 (our own states)
    " sum(extract(epoch FROM coalesce(l.ended_at, %s) - l.activated_at))::float"
    " FROM leases_leaserequest r JOIN leases_lease l ON l.request_id = r.id"
    f" WHERE r.state IN {in_sql(UNFINISHED_STATES)} AND l.part = 0"
    " AND l.activated_at <= coalesce(l.ended_at, %s)"
    " GROUP BY r.id, r.team_id, r.count, r.nodes"
)
OPEN = (
    "SELECT r.id, r.team_id, r.author_id, r.flavor_id, r.name, r.work, r.cost_milli, r.duration_s, r.submitted_at"  # noqa: S608 (our own states)
    f" FROM leases_leaserequest r WHERE r.state IN {in_sql(OPEN_STATES)}"
    " AND (r.predicted_s IS NULL OR %s) AND r.id > (SELECT max(id) FROM leases_leaserequest) - %s"
    " ORDER BY r.id DESC LIMIT %s"
)
STORE = (
    "UPDATE leases_leaserequest r SET predicted_s = v.likely, predicted_most_s = v.most,"
    " predicted_memory_mib = v.memory FROM unnest(%s::bigint[], %s::int[], %s::int[], %s::int[])"
    " AS v(id, likely, most, memory) WHERE r.id = v.id"
)
_loaded: list[tuple[int, Durations]] = []  # the model of this process by version, at most one


def learn(*, now: datetime) -> DurationModel | None:
    """Store a new model when enough has ended since the last one, and predict anew; None when there is none.

    Safe to repeat and in parallel: the version is unique, and who comes second has nothing to add.
    """
    rows = list(fetch(PAST, [MOST]))
    last = current_model()
    seen = int(last.figures.get("newest", 0)) if last else 0
    if len(rows) < LEAST or sum(row[0] > seen for row in rows) < NEW:
        return None
    answer = _trained([_past(row) for row in rows])
    if answer is None:
        return None
    figures = {**answer["figures"], "newest": max(row[0] for row in rows)}
    try:
        made = DurationModel.objects.create(
            version=(last.version if last else 0) + 1,
            curves=lengths(rows, fetch(UNFINISHED, [now, now])),
            trees=answer["model"],
            figures=figures,
            requests=len(rows),
            made_at=now,
        )
    except IntegrityError:
        return None
    DurationModel.objects.filter(version__lte=made.version - KEEP).delete()
    predict(is_anew=True)
    return made


def predict(*, is_anew: bool = False) -> int:
    """Write what is predicted on requests that wait or run without it (``is_anew``: on all of them).

    Safe to repeat; answers how many were written. Nothing happens as long as there is no model.
    """
    rows = list(fetch(OPEN, [is_anew, MOST, MOST_AT_ONCE]))
    model = current() if rows else None
    if model is None:
        return 0
    guesses = model.guess([_kind(row) for row in rows])
    return execute(
        STORE,
        [
            [row[0] for row in rows],
            [one.likely_s for one in guesses],
            [one.most_s for one in guesses],
            [one.memory_mib for one in guesses],
        ],
    )


def current() -> Durations | None:
    """Return the newest model, read once per version and process; None without one, or if it cannot be read."""
    version = DurationModel.objects.values_list("version", flat=True).first()
    if version is None:
        return None
    if not _loaded or _loaded[0][0] != version:
        try:
            _loaded[:] = [(version, durations_from(DurationModel.objects.get(version=version).trees))]
        except (DurationModel.DoesNotExist, KeyError, TypeError, ValueError):
            log.warning("the duration model %s cannot be read; nothing is predicted", version)
            return None
    return _loaded[0][1]


def lengths(rows: Iterable[Sequence[Any]], unfinished: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Return how long requests run by team and size, from rows of PAST and UNFINISHED, as the engine learns it."""
    record = LengthRecord()
    for row in rows:
        record.note(row[1], row[12], max(row[10], 1.0), row[13])
    found = record.learned(1, [(team, units, ran_s) for team, units, ran_s in unfinished])
    return {"lengths": found.lengths, "errors": found.errors}


def _trained(past: Sequence[EndedRequest]) -> dict[str, Any] | None:
    """Return what the training process answers, None when it fails: then the model at hand stays."""
    rows = [[astuple(one.kind), one.made_s, one.over_s, one.ran_s, one.peak_mib] for one in past]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scheduler.training"],
            input=json.dumps(rows),
            capture_output=True,
            text=True,
            timeout=TRAINING_S,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        log.warning("training failed: %s", str(detail)[-2000:])
        return None
    return answer


def _past(row: Sequence[Any]) -> EndedRequest:
    made, over = row[8].timestamp(), row[9].timestamp()
    return EndedRequest(_kind(row), made, max(over, made), max(row[10], 1.0), row[11])


def _kind(row: Sequence[Any]) -> SubmittedRequest:
    _, team, person, flavor, name, work, size, asked, at, *_ = row
    return SubmittedRequest(team, person, flavor, name, WORK.get(work, 0), size, asked, at.hour, at.weekday())
