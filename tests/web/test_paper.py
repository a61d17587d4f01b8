"""Invoices and reports on paper: what they say, the same bytes again, and a sentence where none can be made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.utils import translation

from portal.billing.closing import close_period
from portal.billing.energy import EnergyFigures
from portal.billing.report import report_of
from portal.billing.selectors import invoice_view, period_of
from portal.common.errors import Conflict
from portal.teams.models import Team
from portal.web.reports import paper
from portal.web.reports.printed import invoice_paper, report_paper
from portal.web.teams.rows import in_tree_order
from tests.portal.builders import World, build_world
from tests.web.conftest import SignedIn

FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)


@pytest.fixture
def world(db: None) -> World:
    world = build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))
    world.ended("bob", seconds=3607, at=FEBRUARY, duration_s=7200)
    close_period(period=period_of(FEBRUARY), actor=None, now=world.now)
    return world


@pytest.fixture
def fresh() -> Iterator[None]:
    """A process that has typeset nothing yet."""
    paper._compiler.cache_clear()
    yield
    paper._compiler.cache_clear()


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_an_issued_invoice_is_a_pdf_with_the_same_bytes_each_time(world: World, language: str) -> None:
    Team.objects.filter(slug="northwind").update(name='#let x = "\\u{0}" *bold* $1$')
    view = invoice_view(world.team("perception"), period_of(FEBRUARY), now=world.now)

    with translation.override(language):
        printed = invoice_paper(view, now=world.now)
        if language == "zh-hans" and not set(paper.CHINESE) & paper._compiler()[1]:
            pytest.skip("this machine has no font with Chinese characters")
        first, again = paper.pdf(printed), paper.pdf(printed)

    assert first.startswith(b"%PDF-1.7")
    assert first == again
    assert b"pdfaid" in first


def test_paper_says_what_the_invoice_and_the_report_say(world: World) -> None:
    view = invoice_view(world.team("perception"), period_of(FEBRUARY), now=world.now)
    report = report_of(period_of(FEBRUARY), in_tree_order(list(Team.objects.all())), now=world.now)

    invoice, whole = invoice_paper(view, now=world.now), report_paper(report, of="", energy=EnergyFigures())

    assert invoice.title == "Invoice 202602-0001"
    assert invoice.state == ""
    total = f"{view.total_micro / 1_000_000:.2f}"
    assert [row.cells[-1] for row in invoice.rows] == [total] == [invoice.total[-1]]
    assert whole.total[1] == total
    assert len(whole.columns) == len(whole.rows[0].cells) == len(whole.total)
    assert [row.depth for row in whole.rows] == [0, 1, 2]


def test_without_the_extra_a_person_reads_what_is_missing(
    world: World, signed_in: SignedIn, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    finance = signed_in("finance")

    for address in ("/invoices/perception/2026-02/invoice.pdf", "/reports/2026-02/report.pdf"):
        answer = finance.get(address)

        assert answer.status_code == 409
        assert "berth[pdf]" in answer.content.decode()


def test_chinese_without_a_font_is_refused_with_what_to_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    Team.objects.filter(slug="northwind").update(name="北风")
    monkeypatch.setattr(paper, "CHINESE", ())
    view = invoice_view(world.team("perception"), period_of(FEBRUARY), now=world.now)

    with pytest.raises(Conflict) as refused:
        paper.pdf(invoice_paper(view, now=world.now))

    assert "BERTH_PDF_FONTS" in str(refused.value.detail)
