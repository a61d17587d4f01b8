"""Imports of finance over HTTP: a CSV file, previewed, applied as it was previewed, and undone."""

from __future__ import annotations

from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import PAGING, call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Text
from portal.api.idempotency import once
from portal.api.pagination import PARAMETERS, Pages
from portal.api.parsers import FileParser
from portal.api.representations import Row
from portal.api.responses import Money, ResponseShape
from portal.api.wire import instant, money
from portal.billing.external_usage import ExternalLine, apply_usage, preview_usage
from portal.billing.imports import imports_in_sight, require_finance, visible_import
from portal.billing.models import FinanceImport, ImportKind
from portal.billing.opening_balances import (
    BalanceLine,
    apply_balances,
    preview_balances,
)
from portal.common.clock import db_now
from portal.common.csv_rows import MOST_TEXT
from portal.web.imports.page import UNDO, fault_texts, reversal_uid

TAG = "money"
_DIGEST = "Of the preview: what was previewed is what is applied."


class BalancesFile(Body):
    """A CSV file of opening balances: its first line names the columns."""

    csv = Text(most=MOST_TEXT, help_text="Columns: team, balance, used, currency, as_of.")


class BalancesToApply(BalancesFile):
    """The same, with the digest of its preview."""

    digest = Text(most=64, help_text=_DIGEST)


class BalanceLineAnswer(ResponseShape):
    """What a row does, or why it cannot be applied."""

    line = s.IntegerField(help_text="Its number in the file; the head is line 1.")
    team = s.CharField(allow_null=True, help_text="Slug; null: there is no such team.")
    was = Money(allow_null=True, help_text="The balance of the wallet before; null where none is given.")
    balance = Money(allow_null=True, help_text="What is added to it.")
    new = Money(allow_null=True, help_text="The balance after it.")
    used = Money(allow_null=True, help_text="What counts against budgets in the month.")
    as_of = s.DateField(allow_null=True)
    faults = s.ListField(child=s.CharField())


class BalancesPreview(ResponseShape):
    """What each row would do; ready is when all can be applied."""

    digest = s.CharField()
    is_ready = s.BooleanField()
    month = s.CharField(allow_null=True, help_text="Null: no row has a day of an open month.")
    balance = Money()
    used = Money()
    lines = BalanceLineAnswer(many=True)


class UsageFile(Body):
    """A CSV file of external usage: its first line names the columns."""

    csv = Text(
        most=MOST_TEXT, help_text="Columns: source, external_id, team, description, start, end, gpus …"
    )


class UsageToApply(UsageFile):
    """The same, with the digest of its preview."""

    digest = Text(most=64, help_text=_DIGEST)


class ExternalLineAnswer(ResponseShape):
    """What a row is billed as, or why it cannot be."""

    line = s.IntegerField(help_text="Its number in the file; the head is line 1.")
    source_name = s.CharField(allow_blank=True)
    external_id = s.CharField(allow_blank=True)
    team = s.CharField(allow_null=True, help_text="Slug; null: there is no such team.")
    person = s.CharField(allow_null=True)
    project = s.CharField(allow_blank=True)
    description = s.CharField(allow_blank=True)
    starts_at = s.DateTimeField(allow_null=True)
    ends_at = s.DateTimeField(allow_null=True)
    amount = Money(allow_null=True)
    faults = s.ListField(child=s.CharField())


class ExternalPreviewAnswer(ResponseShape):
    """What each row is billed as; ready is when all can be."""

    digest = s.CharField()
    is_ready = s.BooleanField()
    month = s.CharField(allow_null=True, help_text="Null: no row has a time in an open month.")
    amount = Money()
    lines = ExternalLineAnswer(many=True)


class ImportAnswer(ResponseShape):
    """A file that was imported."""

    id = s.CharField()
    kind = s.ChoiceField(ImportKind.choices)
    month = s.CharField()
    digest = s.CharField()
    rows = s.IntegerField()
    person = s.CharField()
    made_at = s.DateTimeField()
    reverses = s.CharField(allow_null=True, help_text="The import that this one undoes.")
    reversed_by = s.CharField(allow_null=True, help_text="The import that undid this one.")


class Imports(Endpoint):
    """What finance imported."""

    parameters = PARAMETERS

    @call("List imports", answer=ImportAnswer, is_list=True, parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the files that were imported, the newest first. Finance."""
        require_finance(self.rights)
        pages = Pages()
        rows = pages.page(imports_in_sight(self.rights), request)
        return Response(pages.answer([import_row(row) for row in rows]))


class OneImport(Endpoint):
    """One import."""

    @call("Read an import", answer=ImportAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read an import. Finance."""
        return Response(import_row(visible_import(self.rights, uid)))


class UndoImport(Endpoint):
    """Undoing an import."""

    @call("Undo an import", body=Empty, answer=ImportAnswer, status=201, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Reverse all rows of an import by a counter-import, as long as its month is open. Finance."""
        self.take(Empty)
        book = visible_import(self.rights, uid)
        return _made(UNDO[ImportKind(book.kind)](book, rights=self.rights, now=db_now()))


class PreviewBalances(Endpoint):
    """What a file of opening balances would do."""

    http_method_names = ["post"]
    parser_classes = (FileParser,)

    @call(
        "Preview opening balances", body=BalancesFile, answer=BalancesPreview, refusals=(409, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Say what each row of a CSV file would do. Changes nothing. Finance."""
        require_finance(self.rights)
        found = preview_balances(self.take(BalancesFile)["csv"], rights=self.rights, now=db_now())
        answer = {
            "digest": found.digest,
            "is_ready": found.is_ready,
            "month": f"{found.first:%Y-%m}" if found.first else None,
            "balance": money(found.balance_micro, found.currency),
            "used": money(found.used_micro, found.currency),
            "lines": [_line(line, found.currency) for line in found.lines],
        }
        return Response(answer)


class OpeningBalances(Endpoint):
    """Opening balances of a CSV file."""

    http_method_names = ["post"]
    parser_classes = (FileParser,)

    @call(
        "Import opening balances", body=BalancesToApply, answer=ImportAnswer, status=201, refusals=(409, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Apply a previewed CSV file, all rows or none. 422 names each faulty row. Finance."""
        require_finance(self.rights)
        values = self.take(BalancesToApply)
        made = apply_balances(values["csv"], digest=values["digest"], rights=self.rights, now=db_now())
        return _made(made)


class PreviewUsage(Endpoint):
    """What a file of external usage would be billed as."""

    http_method_names = ["post"]
    parser_classes = (FileParser,)

    @call(
        "Preview external usage", body=UsageFile, answer=ExternalPreviewAnswer, refusals=(409, 422), tag=TAG
    )
    @once
    def post(self, request: Request) -> Response:
        """Say what each row of a CSV file would be billed as. Changes nothing. Finance."""
        require_finance(self.rights)
        found = preview_usage(self.take(UsageFile)["csv"], rights=self.rights, now=db_now())
        answer = {
            "digest": found.digest,
            "is_ready": found.is_ready,
            "month": f"{found.first:%Y-%m}" if found.first else None,
            "amount": money(found.amount_micro, found.currency),
            "lines": [_external_line(line, found.currency) for line in found.lines],
        }
        return Response(answer)


class ImportUsage(Endpoint):
    """External usage of a CSV file."""

    http_method_names = ["post"]
    parser_classes = (FileParser,)

    @call(
        "Import external usage", body=UsageToApply, answer=ImportAnswer, status=201, refusals=(409, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Bill the rows of a previewed CSV file, all or none. 422 names each faulty row. Finance."""
        require_finance(self.rights)
        values = self.take(UsageToApply)
        return _made(apply_usage(values["csv"], digest=values["digest"], rights=self.rights, now=db_now()))


def _external_line(line: ExternalLine, unit: str) -> Row:
    return {
        "line": line.number,
        "source_name": line.source,
        "external_id": line.external_id,
        "team": line.team.slug if line.team else None,
        "person": line.person.username if line.person else None,
        "project": line.labels.project,
        "description": line.description,
        "starts_at": instant(line.starts_at),
        "ends_at": instant(line.ends_at),
        "amount": money(line.amount_micro, unit),
        "faults": fault_texts(line.faults),
    }


def _made(made: FinanceImport) -> Response:
    return Response(import_row(made), status=201, headers={"Location": f"/api/v1/imports/{made.uid}/"})


def _line(line: BalanceLine, unit: str) -> Row:
    return {
        "line": line.number,
        "team": line.team.slug if line.team else None,
        "was": money(line.was_micro, unit),
        "balance": money(line.balance_micro, unit),
        "new": money(line.new_micro, unit),
        "used": money(line.used_micro, unit),
        "as_of": line.as_of.isoformat() if line.as_of else None,
        "faults": fault_texts(line.faults),
    }


def import_row(book: FinanceImport) -> Row:
    """Return an import as it goes out."""
    return {
        "id": book.uid,
        "kind": book.kind,
        "month": str(book.period),
        "digest": book.digest,
        "rows": book.rows,
        "person": str(book.made_by or "Berth"),
        "made_at": instant(book.made_at),
        "reverses": book.reverses.uid if book.reverses else None,
        "reversed_by": reversal_uid(book) or None,
    }
