"""Run the lab: play a history under each policy version, and write what came of it.

A run has a process of its own (``scheduler.lab_process``), so that no turn of the product waits for it. Killed at any
point it is taken up again, from the version that it was at (``portal.lab.services.begin_next``).
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime

from portal.common.clock import db_now
from portal.lab.models import LabFault, LabRun
from portal.lab.services import GoneError, begin_next, fail, finish, note, packed
from portal.policies.models import Policy
from portal.policies.selectors import policy_of
from scheduler.engine.model import PolicyRules
from scheduler.engine.policy_body import BadPolicy
from scheduler.lab_history import read_history
from scheduler.replay.history import changed, history_from_json, history_to_json, what_if_from
from scheduler.replay.lab import most_changed, play
from scheduler.replay.trace_files import TraceFault

log = logging.getLogger(__name__)
BEAT_S = 1.0


def feed(*, now: datetime) -> LabRun | None:
    """Start the process of the next run; None when there is none."""
    row = begin_next(now=now)
    if row is not None:
        # In the session of the worker: whoever ends that ends the run, too, and it is taken up again.
        subprocess.Popen(  # noqa: S603 (our own program, names from our own rows)
            [sys.executable, "-m", "scheduler.lab_process", row.uid, str(row.attempts)],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return row


class Heart:
    """Writes that a run is alive and how far it is: the first time, and then at most once in BEAT_S."""

    def __init__(self, row: LabRun, clock: Callable[[], float] = time.monotonic) -> None:
        self._row, self._clock = row, clock
        self._next = clock()

    def beat(self, **values: int) -> None:
        """Write it, unless that was a moment ago. Raises GoneError."""
        if self._clock() >= self._next:
            note(self._row, now=db_now(), **values)
            self._next = self._clock() + BEAT_S


def carry_out(uid: str, attempt: int) -> None:
    """Do a run that was begun, unless it is another process's by now. What goes wrong is written on it."""
    row = LabRun.objects.get(uid=uid)
    if row.attempts != attempt:
        return
    try:
        _play_all(row)
    except GoneError:
        return
    except TraceFault:
        fail(row, LabFault.UNFIT, now=db_now())
    except Exception:
        log.exception("run %s of the lab failed", uid)
        fail(row, LabFault.BROKEN, now=db_now())


def _play_all(row: LabRun) -> None:
    heart = Heart(row)
    if row.history is None:
        assert row.since is not None
        assert row.until is not None
        history, left_out = read_history(row.since, row.until, now=db_now(), beat=heart.beat)
        row.history = gzip.compress(history_to_json(history), 6, mtime=0)
        note(row, now=db_now(), history=row.history, left_out=left_out)
    history = changed(history_from_json(gzip.decompress(row.history)), what_if_from(row.what_if), row.seed)
    answers = list(row.answers)
    played = json.loads(gzip.decompress(row.played)) if row.played else []
    parts = len(row.versions)
    for version in row.versions[len(answers) :]:
        policy = _policy(version)
        if policy is None:
            fail(row, LabFault.MISSING, now=db_now())
            return
        before = len(answers) * 1000

        def tell(milli: int, before: int = before) -> None:
            heart.beat(progress_milli=(before + milli) // parts)

        answer = play(history, policy, tell)
        if not answer["requests"]:
            fail(row, LabFault.NOTHING, now=db_now())
            return
        played.append(answer.pop("played"))
        answers.append({"version": version, "name": policy.name, **answer})
        if len(answers) < parts:
            note(row, now=db_now(), answers=answers, played=packed(played))
    finish(row, answers, played, most_changed(history, played), now=db_now())


def _policy(version: int) -> PolicyRules | None:
    if version == 0:
        return PolicyRules()
    row = Policy.objects.filter(version=version).first()
    try:
        return policy_of(row) if row else None
    except BadPolicy:
        return None
