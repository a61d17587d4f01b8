"""Files of finance: a pasted or chosen CSV file, its preview, applying all of it or nothing, and undoing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from django import forms
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.billing.external_usage import EXAMPLE as USAGE_EXAMPLE
from portal.billing.external_usage import (
    ExternalLine,
    ExternalPreview,
    apply_usage,
    preview_usage,
    undo_usage,
)
from portal.billing.imports import (
    MOST_ROWS,
    imports_in_sight,
    require_finance,
    undoable,
    visible_import,
)
from portal.billing.models import ExternalUsage, FinanceImport, ImportKind, OpeningBalance
from portal.billing.opening_balances import (
    EXAMPLE,
    BalanceLine,
    BalancePreview,
    apply_balances,
    preview_balances,
    undo_balances,
)
from portal.common.clock import db_now
from portal.common.csv_rows import MOST_TEXT
from portal.common.errors import BerthError, Invalid
from portal.web.access import done, refused, rights_of
from portal.web.figures import money
from portal.web.invoices.rows import beside_text

SHOWN = 200
UNDO = {ImportKind.BALANCES: undo_balances, ImportKind.USAGE: undo_usage, ImportKind.ENERGY: undo_usage}
PER_PAGE = 50


class _Faulty(Protocol):
    faults: list[tuple[str, str]]


Line = TypeVar("Line", bound=_Faulty)
Preview = TypeVar("Preview", BalancePreview, ExternalPreview)


class ImportForm(forms.Form):
    """The text of a CSV file, and the digest of what was previewed of it."""

    csv = forms.CharField(
        label=gettext_lazy("Lines"),
        max_length=MOST_TEXT,
        strip=False,
        help_text=gettext_lazy("The first line names the columns. Paste it, or choose a file."),
        widget=forms.Textarea(
            {"class": "form-control code", "rows": 10, "spellcheck": "false", "autocomplete": "off"}
        ),
    )
    digest = forms.CharField(max_length=64, required=False, widget=forms.HiddenInput)


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """List what was imported."""
    require_finance(rights_of(request))
    shown = Paginator(imports_in_sight(rights_of(request)), PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "web/imports.html", {"page": shown, "rows": [import_row(one) for one in shown]})


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def balances(request: HttpRequest) -> HttpResponse:
    """Show the form for opening balances; a POST previews what each row would do, or applies them all."""
    form = ImportForm(request.POST if request.method == "POST" else None)
    found, answer = _taken(request, form, preview_balances, apply_balances)
    if answer is not None:
        return answer
    context = {
        "rows": [_balance_row(line) for line in shown_lines(found.lines)] if found else [],
        "balance": money(found.balance_micro) if found else None,
        "used": money(found.used_micro) if found else None,
        "example": f"{EXAMPLE}\nvision,6000.00,1250.50,EUR,2026-11-01\n",
    }
    return _shown(request, form, found, "web/import_balances.html", context)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def usage(request: HttpRequest) -> HttpResponse:
    """Show the form for external usage; a POST previews what each row is billed as, or bills them all."""
    form = ImportForm(request.POST if request.method == "POST" else None)
    found, answer = _taken(request, form, preview_usage, apply_usage)
    if answer is not None:
        return answer
    row = "cloud-a,i-0042,vision,,,,8 x A100,2026-11-01T00:00:00Z,2026-11-02T00:00:00Z,8,,512.40,EUR"
    context = {
        "rows": [_usage_row(line) for line in shown_lines(found.lines)] if found else [],
        "amount": money(found.amount_micro) if found else None,
        "teams": [(team, money(micro)) for team, micro in found.by_team][:SHOWN] if found else [],
        "example": f"{USAGE_EXAMPLE}\n{row}\n",
    }
    return _shown(request, form, found, "web/import_usage.html", context)


def _taken(
    request: HttpRequest,
    form: ImportForm,
    preview: Callable[..., Preview],
    apply: Callable[..., FinanceImport],
) -> tuple[Preview | None, HttpResponse | None]:
    """Return what a form's file would do, or the answer once it is applied; the form says what is wrong with it."""
    rights = rights_of(request)
    require_finance(rights)
    if not form.is_bound or not form.is_valid():
        return None, None
    text, digest = form.cleaned_data["csv"], form.cleaned_data["digest"]
    try:
        found = preview(text, rights=rights, now=db_now())
        if request.POST.get("action") != "apply" or not found.is_ready:
            return found, None
        made = apply(text, digest=digest, rights=rights, now=db_now())
    except BerthError as error:
        if error.status in (403, 404):
            raise
        for sentence in error.fields.values() if isinstance(error, Invalid) else [error.detail]:
            form.add_error("csv", sentence)
        return None, None
    said = ngettext("%(n)d row is imported.", "%(n)d rows are imported.", made.rows) % {"n": made.rows}
    return None, done(request, said, "web:import", made.uid)


def _shown(
    request: HttpRequest, form: ImportForm, found: Any, template: str, context: dict[str, Any]
) -> HttpResponse:
    context |= {
        "form": form,
        "found": found,
        "faulty": sum(bool(line.faults) for line in found.lines) if found else 0,
        "most": MOST_ROWS,
        "most_bytes": MOST_TEXT,
    }
    is_fine = not form.is_bound or (found is not None and found.is_ready)
    return render(request, template, context, status=200 if is_fine else 422)


def shown_lines(lines: Sequence[Line]) -> list[Line]:
    """Return the rows of a preview that a page has room for: all of them, else the faulty ones, else the first."""
    if len(lines) <= SHOWN:
        return list(lines)
    faulty = [line for line in lines if line.faults]
    return (faulty or list(lines))[:SHOWN]


def _balance_row(line: BalanceLine) -> dict[str, Any]:
    return {
        "number": line.number,
        "name": line.name,
        "team": line.team,
        "was": money(line.was_micro),
        "new": money(line.new_micro),
        "balance": money(line.balance_micro),
        "used": money(line.used_micro),
        "as_of": line.as_of,
        "faults": fault_texts(line.faults),
    }


def _usage_row(line: ExternalLine) -> dict[str, Any]:
    return {
        "number": line.number,
        "what": line.description,
        "source": line.source,
        "id": line.external_id,
        "name": line.name,
        "team": line.team,
        "person": line.person,
        "starts_at": line.starts_at,
        "ends_at": line.ends_at,
        "amount": money(line.amount_micro),
        "faults": fault_texts(line.faults),
    }


def fault_texts(faults: Sequence[tuple[str, str]]) -> list[str]:
    """Return what is wrong with a row, with its columns."""
    return [f"{column}: {why}" if column else why for column, why in faults]


@require_safe
def one(request: HttpRequest, uid: str) -> HttpResponse:
    """Show an import with its rows."""
    book = visible_import(rights_of(request), uid)
    is_usage = book.kind != ImportKind.BALANCES
    rows: QuerySet[Any] = (
        book.usage.select_related("team", "user") if is_usage else book.balances.select_related("team")
    )
    shown = Paginator(rows, SHOWN).get_page(request.GET.get("page"))
    context = {
        "book": book,
        "row": import_row(book),
        "page": shown,
        "is_usage": is_usage,
        "rows": [_billed(row) if is_usage else _brought(row) for row in shown],
        "can_undo": undoable(book),
    }
    return render(request, "web/import.html", context)


def _brought(row: OpeningBalance) -> dict[str, Any]:
    return {
        "line": row.line,
        "team": row.team,
        "balance": money(row.balance_micro),
        "used": money(row.used_micro),
        "as_of": row.as_of,
    }


def _billed(row: ExternalUsage) -> dict[str, Any]:
    return {
        "number": row.line,
        "what": beside_text(row),
        "source": row.source,
        "id": row.external_id,
        "team": row.team,
        "person": row.user,
        "starts_at": row.starts_at,
        "ends_at": row.ends_at,
        "amount": money(row.amount_micro),
    }


@require_POST
def undo(request: HttpRequest, uid: str) -> HttpResponse:
    """Reverse all rows of an import."""
    book = visible_import(rights_of(request), uid)
    try:
        made = UNDO[ImportKind(book.kind)](book, rights=rights_of(request), now=db_now())
    except BerthError as error:
        if error.status in (403, 404):
            raise
        return refused(request, error, "web:import", uid)
    return done(request, _("%(uid)s is undone.") % {"uid": uid}, "web:import", made.uid)


def import_row(book: FinanceImport) -> dict[str, Any]:
    """Return an import as it is shown."""
    return {
        "uid": book.uid,
        "kind": book.get_kind_display(),
        "month": book.period,
        "rows": book.rows,
        "by": str(book.made_by or "Berth"),
        "at": book.made_at,
        "reverses": book.reverses.uid if book.reverses else "",
        "reversed_by": reversal_uid(book),
    }


def reversal_uid(book: FinanceImport) -> str:
    """Return the import that undid this one, "" where none did."""
    found = getattr(book, "reversal", None)
    return found.uid if found else ""
