"""The lab over HTTP: policy versions tried on one's own history, or on a trace. Operators."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse, HttpResponseBase
from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Instant, Text, Whole
from portal.api.idempotency import once
from portal.api.parsers import FileParser
from portal.api.representations import Row
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.common.csv_rows import MOST_TEXT
from portal.lab.models import LabFault, LabRun, LabState
from portal.lab.selectors import anonymous_trace, answers_of, traced
from portal.lab.services import LabWish, run_of, runs_of, stop_run, submit_run

TAG = "policies"


class LabBody(Body):
    """What is tried: two to six versions on a period of one's own history, or on a trace on equal nodes."""

    name = Text(most=80)
    versions = s.ListField(
        child=s.IntegerField(min_value=0, max_value=2**31 - 1), min_length=1, max_length=10
    )
    since = Instant(required=False, allow_null=True)
    until = Instant(required=False, allow_null=True)
    trace = Text(
        most=MOST_TEXT + 1, required=False, help_text="CSV: seq,submit_s,duration_s,gpus[,vc,est_duration_s]"
    )
    nodes = Whole(least=0, most=2000, required=False, help_text="For a trace: so many nodes.")
    gpus_per_node = Whole(least=1, most=16, required=False, help_text="For a trace: GPUs of each.")
    what_if = s.DictField(
        required=False,
        help_text="`demand`: times so much; `nodes`: names of nodes, each with how many of its kind"
        " more or fewer; `teams`: names of teams, each with how many like it more.",
    )
    seed = Whole(least=0, most=2**31 - 1, required=False, help_text="The same seed draws the same demand.")


class LabRunAnswer(ResponseShape):
    """A run: what is tried on what, and how far it is."""

    id = s.CharField()
    name = s.CharField()
    state = s.ChoiceField(LabState.choices)
    fault = s.ChoiceField(LabFault.choices, allow_null=True)
    progress_milli = s.IntegerField()
    versions = s.ListField(child=s.IntegerField())
    since = s.DateTimeField(allow_null=True)
    until = s.DateTimeField(allow_null=True)
    what_if = s.DictField()
    seed = s.IntegerField()
    made_by = s.CharField()
    created_at = s.DateTimeField()
    ended_at = s.DateTimeField(allow_null=True)


class LabWaits(ResponseShape):
    """Waits in seconds; null where nobody waited or started."""

    requests = s.IntegerField()
    mean_s = s.FloatField(allow_null=True)
    p50_s = s.IntegerField(allow_null=True)
    p95_s = s.IntegerField(allow_null=True)
    p999_s = s.IntegerField(allow_null=True)
    max_s = s.IntegerField(allow_null=True)


class LabTeamWaits(LabWaits):
    """Waits of a team; `starved` waited longer than a day and ten times their own length, `never` did not start."""

    team = s.CharField()
    slowdown = s.FloatField(allow_null=True)
    starved = s.IntegerField()
    never = s.IntegerField()


class LabSizeWaits(LabWaits):
    """Waits of requests of so many units; `most` null is open."""

    least = s.IntegerField()
    most = s.IntegerField(allow_null=True)


class LabHourWaits(LabWaits):
    """Waits of requests that came in this hour of the day, UTC."""

    hour = s.IntegerField()


class LabBill(ResponseShape):
    """What a team would pay by today's price list; requests without a price are in no sum."""

    team = s.CharField()
    micro = s.IntegerField()
    unpriced = s.IntegerField()


class LabPromises(ResponseShape):
    """Forecasts for those who had to wait, and how many started by the time that nine of ten should (P90)."""

    forecasts = s.IntegerField()
    kept = s.IntegerField()
    unknown = s.IntegerField(help_text="No start was in sight.")


class LabEnergy(ResponseShape):
    """An estimate, by what leases of each flavor drew in the period; idle boards are not in it."""

    wh = s.IntegerField(help_text="Watt-hours.")
    unknown = s.IntegerField(help_text="Requests of flavors whose draw is unknown: in no sum.")


class LabVersionAnswer(ResponseShape):
    """What came of one policy version. `utilisation` is what was allocated, not what was computed."""

    version = s.IntegerField()
    name = s.CharField()
    requests = s.IntegerField()
    impossible = s.IntegerField(help_text="Left out: the empty fleet cannot serve them.")
    never = s.IntegerField()
    starved = s.IntegerField()
    waits = LabWaits()
    by_team = LabTeamWaits(many=True)
    by_size = LabSizeWaits(many=True)
    by_hour = LabHourWaits(many=True)
    fairness = s.FloatField(allow_null=True, help_text="Jain's index of the slowdowns of teams; 1 is equal.")
    slowdown = s.FloatField(allow_null=True)
    preemptions = s.IntegerField()
    most_evictions = s.IntegerField()
    utilisation = s.FloatField(allow_null=True)
    used_by_hour = s.ListField(child=s.FloatField())
    currency = s.CharField(help_text="Of the bill; empty without prices.")
    bill = LabBill(many=True, allow_null=True)
    promises = LabPromises(allow_null=True)
    energy = LabEnergy(allow_null=True)


class LabAnswer(LabRunAnswer):
    """A run with what came of each version that is through; `digest` is the SHA-256 of all of it."""

    left_out = s.DictField()
    answers = LabVersionAnswer(many=True)
    digest = s.CharField()


class LabOvertaken(ResponseShape):
    """How many requests of a team came later and started first."""

    team = s.CharField()
    requests = s.IntegerField()


class LabTraced(ResponseShape):
    """What one version did to one request; `wait_s` null: it never started."""

    version = s.IntegerField()
    name = s.CharField()
    wait_s = s.IntegerField(allow_null=True)
    evictions = s.IntegerField()
    overtaken_by = LabOvertaken(many=True)


class LabRuns(Endpoint):
    """Runs of the lab."""

    parser_classes = (FileParser,)  # a trace comes along

    @call("List runs of the lab", answer=LabRunAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the newest hundred runs."""
        return Response({"next": None, "results": [_row(row) for row in runs_of(self.rights)]})

    @call(
        "Start a run of the lab", body=LabBody, answer=LabRunAnswer, status=201, refusals=(409, 422), tag=TAG
    )
    @once
    def post(self, request: Request) -> Response:
        """Try policy versions on history. It waits its turn and runs beside the product at the lowest priority."""
        values = self.take(LabBody)
        row = submit_run(actor=self.person, rights=self.rights, wish=LabWish(**values), now=timezone.now())
        return Response(_row(row), status=201, headers={"Location": f"/api/v1/lab/{row.uid}/"})


class OneLabRun(Endpoint):
    """One run."""

    @call("Read a run of the lab", answer=LabAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read how far a run is and what came of it."""
        row = run_of(self.rights, uid)
        return Response(
            {**_row(row), "left_out": row.left_out, "answers": answers_of(row), "digest": row.digest}
        )


class StopLabRun(Endpoint):
    """The end of a run."""

    @call("Stop a run of the lab", body=Empty, answer=LabRunAnswer, refusals=(404, 409), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Stop a run that waits at once, and one that runs within seconds."""
        self.take(Empty)
        return Response(_row(stop_run(actor=self.person, rights=self.rights, uid=uid, now=timezone.now())))


class LabTrace(Endpoint):
    """The history of a run."""

    @call("Download the trace of a run", media_type="text/csv", refusals=(404, 409), tag=TAG)
    def get(self, request: Request, uid: str) -> HttpResponseBase:
        """Download what a run plays as a trace without names and dates."""
        text = "".join(anonymous_trace(self.rights, uid))
        return HttpResponse(text, content_type="text/csv; charset=utf-8")


class LabRequest(Endpoint):
    """One request of a run."""

    @call("Read what a run did to a request", answer=LabTraced, is_list=True, refusals=(404, 409), tag=TAG)
    def get(self, request: Request, uid: str, name: str) -> Response:
        """Say for each version how long a request waited, and who came later and started first."""
        rows = traced(self.rights, uid, name)
        return Response(
            {
                "next": None,
                "results": [
                    {
                        "version": row.version,
                        "name": row.name,
                        "wait_s": row.wait_s,
                        "evictions": row.evictions,
                        "overtaken_by": [{"team": team, "requests": n} for team, n in row.overtaken_by],
                    }
                    for row in rows
                ],
            }
        )


def _row(row: LabRun) -> Row:
    found: dict[str, Any] = {
        "id": row.uid,
        "name": row.name,
        "state": str(row.state),
        "fault": str(row.fault) or None,
        "progress_milli": row.progress_milli,
        "versions": row.versions,
        "since": instant(row.since),
        "until": instant(row.until),
        "what_if": row.what_if,
        "seed": row.seed,
        "made_by": row.made_by.username,
        "created_at": instant(row.created_at),
        "ended_at": instant(row.ended_at),
    }
    return found
