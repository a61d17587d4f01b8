"""Many requests over HTTP: a CSV file, previewed or sent, all or nothing."""

from __future__ import annotations

from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Text
from portal.api.idempotency import once
from portal.api.representations import Row, request_row
from portal.api.responses import Money, ResponseShape
from portal.api.responses_requests import RequestAnswer
from portal.api.wire import money
from portal.billing.selectors import currency
from portal.leases.states import RequestState
from portal.leases.visible_reasons import names_in_sight
from portal.web.requests.new import teams_to_ask_for
from portal.web.requests.request_csv import MOST_TEXT, CsvLine, ask_for_lines, read_csv, refusal_of

TAG = "requests"


class CsvBody(Body):
    """A CSV file: its first line names the columns."""

    csv = Text(
        most=MOST_TEXT, help_text="Columns as of the form: flavor, hours or duration, count, team, name …"
    )


class CsvLineAnswer(ResponseShape):
    """What a line would be, or why it cannot be asked for."""

    line = s.IntegerField(help_text="Its number in the file; the head is line 1.")
    flavor = s.CharField()
    team = s.CharField(allow_blank=True)
    state = s.ChoiceField(RequestState.choices, allow_null=True, help_text="Null: it cannot be asked for.")
    quote = Money(allow_null=True)
    faults = s.ListField(child=s.CharField())


class CsvPreview(ResponseShape):
    """What every line would be; ready is when all can be sent."""

    is_ready = s.BooleanField()
    total = Money(allow_null=True, help_text="Null: not every line has a price.")
    lines = CsvLineAnswer(many=True)


class MadeRequests(ResponseShape):
    """What was asked for, in the order of the lines."""

    results = RequestAnswer(many=True)


class PreviewBulkRequests(Endpoint):
    """What a CSV file of requests would be."""

    http_method_names = ["post"]

    @call("Preview bulk requests", body=CsvBody, answer=CsvPreview, refusals=(403, 422), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Say what each line of a CSV file would be. Changes nothing."""
        lines = read_csv(self.take(CsvBody)["csv"], teams=teams_to_ask_for(self.rights), rights=self.rights)
        is_ready = ask_for_lines(lines, actor=self.person, rights=self.rights, is_trial=True)
        made = [line.made for line in lines if line.made is not None]
        total = sum(one.quote_micro for one in made) if len(made) == len(lines) else None
        answer = {
            "is_ready": is_ready,
            "total": money(total, currency()),
            "lines": [_line(one) for one in lines],
        }
        return Response(answer)


class BulkRequests(Endpoint):
    """Requests of a CSV file."""

    write_scope = Scope.LEASE_WRITE

    @call(
        "Ask for many at once", body=CsvBody, answer=MadeRequests, status=201,
        refusals=(403, 404, 409, 422, 429, 503), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Ask for every line of a CSV file, all or nothing. 422 names each line that cannot be had."""
        lines = read_csv(self.take(CsvBody)["csv"], teams=teams_to_ask_for(self.rights), rights=self.rights)
        if not ask_for_lines(lines, actor=self.person, rights=self.rights, is_trial=False):
            raise refusal_of(lines)
        made = [line.made for line in lines if line.made is not None]
        rows = [request_row(one, names_in_sight(self.rights, one.reasons)) for one in made]
        return Response({"results": rows}, status=201, headers={"Location": "/api/v1/requests/"})


def _line(line: CsvLine) -> Row:
    made, given = line.made, line.form.data
    return {
        "line": line.number,
        "flavor": made.flavor.slug if made else given.get("flavor", ""),
        "team": made.team.slug if made else given.get("team", ""),
        "state": made.state if made and not line.faults else None,
        "quote": money(made.quote_micro, made.currency) if made else None,
        "faults": [f"{column}: {why}" if column else why for column, why in line.faults],
    }
