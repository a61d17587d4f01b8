"""Runs of the lab: asked for, stopped, taken up, and written. The work is done by ``scheduler.lab``."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common import outbox
from portal.common.csv_rows import MOST_TEXT
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.fleet.models import Node
from portal.lab.faults import sentence
from portal.lab.models import LEAST_POLICIES, MOST_POLICIES, OVER, LabFault, LabRun, LabState
from portal.leases.models import LeaseRequest
from portal.policies.models import Policy
from portal.policies.selectors import policy_of
from portal.teams.models import Team
from portal.teams.selectors import Rights
from scheduler.engine.policy_body import BadPolicy
from scheduler.replay.history import (
    MOST_REQUESTS,
    HistoryChanges,
    changed,
    history_of_trace,
    history_to_json,
    what_if_from,
)
from scheduler.replay.jobs import jobs_of_text
from scheduler.replay.trace_files import TraceFault
from scheduler.replay.turns import Cluster

FEED = "scheduler.tasks.feed_lab"
LEAST_REQUESTS = 50
LONGEST = timedelta(days=92)
SILENT = timedelta(seconds=60)
MOST_ATTEMPTS = 3
MOST_WAITING = 20
MOST_GPUS_PER_NODE, MOST_NODES = 16, 2000


@dataclass(frozen=True, slots=True)
class LabWish:
    """What is asked for: a period of one's own history, or the text of a ``trace`` on equal nodes."""

    name: str
    versions: Sequence[int]
    since: datetime | None = None
    until: datetime | None = None
    trace: str = ""
    nodes: int = 0
    gpus_per_node: int = 8
    what_if: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1


def require_lab(rights: Rights) -> None:
    """Raise Forbidden for everybody but operators of the organisation."""
    if not rights.is_operator:
        raise Forbidden(_("Only operators work in the lab."))


@transaction.atomic
def submit_run(*, actor: User, rights: Rights, wish: LabWish, now: datetime) -> LabRun:
    """Ask for a run. Operators. Raises Invalid at the fields, Conflict when too many wait."""
    require_lab(rights)
    faults: dict[str, Any] = {}
    name = wish.name.strip()
    if not 1 <= len(name) <= 80 or not name.isprintable():
        faults["name"] = _("Give it a name of at most %(most)d characters.") % {"most": 80}
    _check_versions(wish.versions, faults)
    what_if, history = HistoryChanges(), None
    try:
        what_if = what_if_from(dict(wish.what_if))
    except TraceFault as fault:
        faults["what_if"] = sentence(fault)
    if wish.trace:
        history = _of_trace(wish, what_if, faults)
    else:
        _check_period(wish, what_if, faults, now)
        _check_models(what_if, faults)
    if not 0 <= wish.seed <= 2**31 - 1:
        faults["seed"] = _("Give a whole number from 0 to 2147483647.")
    if faults:
        raise Invalid(fields=faults)
    if LabRun.objects.exclude(state__in=OVER).count() >= MOST_WAITING:
        raise Conflict(
            _("%(most)d runs wait already. Stop one, or wait for their ends.") % {"most": MOST_WAITING}
        )
    row = LabRun.objects.create(
        name=name,
        since=None if wish.trace else wish.since,
        until=None if wish.trace else wish.until,
        seed=wish.seed,
        what_if={"demand": what_if.demand, "nodes": dict(what_if.nodes), "teams": dict(what_if.teams)},
        versions=list(wish.versions),
        history=history,
        made_by=actor,
        created_at=now,
    )
    record(actor, "lab.submitted", row.uid, at=now, versions=row.versions)
    outbox.nudge_on_commit(FEED)
    return row


def _check_versions(versions: Sequence[int], faults: dict[str, Any]) -> None:
    if not LEAST_POLICIES <= len(versions) <= MOST_POLICIES or len(set(versions)) < len(versions):
        faults["versions"] = _("Choose two to six different policy versions.")
        return
    rows = {row.version: row for row in Policy.objects.filter(version__in=list(versions))}
    for version in versions:
        if version == 0:
            continue
        try:
            if version not in rows:
                raise NotFound
            policy_of(rows[version])
        except (NotFound, BadPolicy):
            faults["versions"] = _("Version %(version)d cannot be played. Choose another.") % {
                "version": version
            }


def _check_period(wish: LabWish, what_if: HistoryChanges, faults: dict[str, Any], now: datetime) -> None:
    if wish.since is None or wish.until is None or wish.since >= wish.until or wish.until > now:
        faults["since"] = _("Give a period that has ended: from an instant to a later one.")
        return
    if wish.until - wish.since > LONGEST:
        faults["since"] = _("At most %(days)d days can be played at once.") % {"days": LONGEST.days}
        return
    count = own_requests(wish.since, wish.until)
    if count < LEAST_REQUESTS:
        faults["since"] = _(
            "Only %(count)d requests of this period ran. A comparison needs at least %(least)d: choose a longer"
            " period, or upload a trace."
        ) % {"count": count, "least": LEAST_REQUESTS}
    elif (count := round(count * what_if.demand)) > MOST_REQUESTS:
        faults["since"] = sentence(TraceFault("too_many", count=count, most=MOST_REQUESTS))


def own_requests(since: datetime, until: datetime) -> int:
    """Return how many requests that were submitted in a period have run."""
    came = LeaseRequest.objects.filter(submitted_at__gte=since, submitted_at__lt=until)
    return came.filter(leases__activated_at__isnull=False).distinct().count()


def _check_models(what_if: HistoryChanges, faults: dict[str, Any]) -> None:
    """Check that there are the nodes and teams that others are to be like."""
    for code, wanted, model in (("no_node", what_if.nodes, Node), ("no_team", what_if.teams, Team)):
        known = set(model.objects.values_list("name", flat=True)) if wanted else set()
        missing = next((name for name, _more in wanted if name not in known), None)
        if missing is not None:
            faults["what_if"] = sentence(TraceFault(code, name=missing))


def _of_trace(wish: LabWish, what_if: HistoryChanges, faults: dict[str, Any]) -> bytes | None:
    """Return the history of a trace as it is stored; None where something is wrong with it, or with the changes."""
    if not 1 <= wish.nodes <= MOST_NODES or not 1 <= wish.gpus_per_node <= MOST_GPUS_PER_NODE:
        faults["nodes"] = _("A trace needs nodes to run on: 1 to %(nodes)d of 1 to %(gpus)d GPUs.") % {
            "nodes": MOST_NODES, "gpus": MOST_GPUS_PER_NODE,
        }  # fmt: skip
        return None
    if len(wish.trace) > MOST_TEXT:
        faults["trace"] = _("The file has more than %(mib)d MiB. Leave out jobs, or take fewer days.") % {
            "mib": MOST_TEXT // 2**20
        }
        return None
    try:
        jobs = jobs_of_text(wish.trace, "trace", wish.nodes * wish.gpus_per_node)
    except TraceFault as fault:
        faults["trace"] = sentence(fault)
        return None
    if jobs.submit[-1] - jobs.submit[0] > LONGEST.total_seconds():
        faults["trace"] = _("At most %(days)d days can be played at once.") % {"days": LONGEST.days}
    elif len(jobs.submit) < LEAST_REQUESTS:
        faults["trace"] = _("The trace has %(count)d jobs. A comparison needs at least %(least)d.") % {
            "count": len(jobs.submit), "least": LEAST_REQUESTS,
        }  # fmt: skip
    if faults:
        return None
    history = history_of_trace(jobs, Cluster(wish.nodes, wish.gpus_per_node))
    try:
        changed(history, what_if, wish.seed)
    except TraceFault as fault:
        faults["what_if" if wish.what_if else "trace"] = sentence(fault)
        return None
    return gzip.compress(history_to_json(history), 6, mtime=0)


@transaction.atomic
def stop_run(*, actor: User, rights: Rights, uid: str, now: datetime) -> LabRun:
    """Stop a run: one that waits at once, one that runs within seconds. Raises NotFound, Conflict when it is over."""
    row = run_of(rights, uid, is_locked=True)
    if row.state in OVER:
        raise Conflict(_("The run is over already."))
    row.is_stopping = True
    if row.state == LabState.QUEUED:
        row.state, row.ended_at = LabState.STOPPED, now
    row.save(update_fields=["is_stopping", "state", "ended_at"])
    record(actor, "lab.stopped", row.uid, at=now)
    return row


def runs_of(rights: Rights, most: int = 100) -> list[LabRun]:
    """Return the newest runs, without what they played."""
    require_lab(rights)
    return list(LabRun.objects.select_related("made_by").defer("history", "played", "answers")[:most])


def run_of(rights: Rights, uid: str, *, is_locked: bool = False) -> LabRun:
    """Return a run, without what it played; raises Forbidden and NotFound."""
    require_lab(rights)
    rows = LabRun.objects.select_related("made_by").defer("history", "played")
    row = (rows.select_for_update(of=("self",)) if is_locked else rows).filter(uid=uid).first()
    if row is None:
        raise NotFound
    return row


def begin_next(*, now: datetime) -> LabRun | None:
    """Take up the oldest run that waits, unless one runs; None when there is nothing to do.

    A run that was not heard of for a while waits again, and fails after MOST_ATTEMPTS. Safe to repeat and in parallel.
    """
    silent = Q(state=LabState.RUNNING, heard_at__lt=now - SILENT)
    LabRun.objects.filter(silent, is_stopping=True).update(state=LabState.STOPPED, ended_at=now)
    LabRun.objects.filter(silent, attempts__gte=MOST_ATTEMPTS).update(
        state=LabState.FAILED, fault=LabFault.ENDED, ended_at=now
    )
    LabRun.objects.filter(silent).update(state=LabState.QUEUED)
    if LabRun.objects.filter(state=LabState.RUNNING).exists():
        return None
    row = (
        LabRun.objects.filter(state=LabState.QUEUED)
        .order_by("created_at", "id")
        .defer("history", "played")
        .first()
    )
    if row is None:
        return None
    try:
        with transaction.atomic():
            won = LabRun.objects.filter(pk=row.pk, state=LabState.QUEUED, attempts=row.attempts).update(
                state=LabState.RUNNING, heard_at=now, attempts=row.attempts + 1
            )
    except IntegrityError:
        return None
    row.attempts += 1
    return row if won else None


class GoneError(Exception):
    """The run is no longer this process's: it was stopped, or another one took it up."""


def note(row: LabRun, *, now: datetime, **values: Any) -> None:
    """Write how far a run is. Raises GoneError, after which nothing more may be written."""
    mine = LabRun.objects.filter(pk=row.pk, state=LabState.RUNNING, attempts=row.attempts)
    if mine.filter(is_stopping=True).update(state=LabState.STOPPED, ended_at=now, heard_at=now):
        raise GoneError
    if not mine.update(heard_at=now, **values):
        raise GoneError


def fail(row: LabRun, fault: LabFault, *, now: datetime) -> None:
    """End a run that cannot go on."""
    note(row, now=now, state=LabState.FAILED, fault=fault, ended_at=now)


def finish(
    row: LabRun, answers: list[Any], played: list[Any], changed_most: list[Any], *, now: datetime
) -> None:
    """Write what came of a run. ``answers`` and ``played`` are in the order of its versions.

    ``changed_most`` is kept beside them, so that nobody unpacks all that was played to read it.
    """
    note(
        row,
        now=now,
        state=LabState.DONE,
        ended_at=now,
        progress_milli=1000,
        answers=answers,
        played=packed(played),
        changed_most=changed_most,
        digest=digest_of(answers, played),
    )


def packed(value: Any) -> bytes:
    """Return a value as gzipped JSON, the same bytes for equal values."""
    return gzip.compress(_text(value), 6, mtime=0)


def digest_of(answers: Any, played: Any) -> str:
    """Return the SHA-256 of all that came of a run."""
    return hashlib.sha256(_text([answers, played])).hexdigest()


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
