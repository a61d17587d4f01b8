"""The last scheduling cycles over HTTP: what each saw and decided, and where its time went. Operators."""

from __future__ import annotations

from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.representations import Row
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.policies import cycles
from portal.policies.cycles import STEPS, CycleRecord

TAG = "policies"


class CycleStepAnswer(ResponseShape):
    """A step of a cycle; steps stand in the order in which they were taken."""

    step = s.ChoiceField(choices=STEPS)
    took_ms = s.FloatField()


class CycleAnswer(ResponseShape):
    """One cycle: how many requests it saw, what it decided, and the time of each step."""

    at = s.DateTimeField()
    policy = s.CharField()
    policy_version = s.IntegerField()
    seen = s.IntegerField()
    granted = s.IntegerField()
    waiting = s.IntegerField()
    impossible = s.IntegerField()
    preempted = s.IntegerField()
    total_ms = s.FloatField()
    steps = CycleStepAnswer(many=True)


class CyclesAnswer(ResponseShape):
    """The last cycles, and the last that decided something, newest first; null while they cannot be read."""

    results = CycleAnswer(many=True, allow_null=True)
    decided = CycleAnswer(many=True, allow_null=True)


class Cycles(Endpoint):
    """The last scheduling cycles."""

    @call("Read the last scheduling cycles", answer=CyclesAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Read what the last cycles decided and how long each of their steps took. Operators."""
        self.require_operator()
        return Response(
            {"results": _rows(cycles.last_cycles()), "decided": _rows(cycles.last_cycles(decided=True))}
        )


def _rows(found: list[CycleRecord] | None) -> list[Row] | None:
    return None if found is None else [_row(record) for record in found]


def _row(record: CycleRecord) -> Row:
    return {
        "at": instant(record.at),
        "policy": record.policy,
        "policy_version": record.policy_version,
        "seen": record.seen,
        "granted": record.granted,
        "waiting": record.waiting,
        "impossible": record.impossible,
        "preempted": record.preempted,
        "total_ms": round(record.total_ms, 3),
        "steps": [{"step": step, "took_ms": round(record.steps_ms.get(step, 0.0), 3)} for step in STEPS],
    }
