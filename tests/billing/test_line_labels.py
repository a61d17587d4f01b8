"""What a line is filed under is copied onto it at the close, and held by the digest of its invoice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client

from portal.billing.books import verify_books
from portal.billing.closing import close_period
from portal.billing.labels import label_request
from portal.billing.metering import meter_all
from portal.billing.models import InvoiceLine, UsageLabel, UsageRecord
from portal.billing.selectors import invoice_view, period_of
from portal.common.sql import execute
from portal.leases.models import Lease
from tests.portal.builders import World, build_world

FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)
CLOSED = datetime(2026, 3, 10, 9, tzinfo=UTC)


@pytest.fixture
def world(db: None) -> World:
    found = build_world(now=CLOSED)
    for day, tags in ((1, {"paper": "iclr"}), (2, {"paper": "cvpr", "b": "1"}), (3, {})):
        lease = found.ended("bob", seconds=3600, at=FEBRUARY.replace(day=day), duration_s=7200)
        _file(found, lease, tags)
    meter_all(now=CLOSED)
    return found


def _file(world: World, lease: Lease, tags: dict[str, str]) -> None:
    label_request(
        request=lease.request,
        project="",
        cost_centre=None,
        tags=tags,
        rights=world.rights("bob"),
        now=world.now,
    )


def wrong() -> dict[str, tuple[str, ...]]:
    return {check.name: check.wrong for check in verify_books(period_of(FEBRUARY), now=CLOSED) if check.wrong}


def past_all_guards(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(sql)
        cursor.execute("SET LOCAL session_replication_role = origin")


def test_a_line_keeps_what_it_is_filed_under_and_any_change_of_it_is_found(
    world: World, client: Client
) -> None:
    team = world.team("perception")
    (draft,) = invoice_view(team, period_of(FEBRUARY), now=CLOSED).lines
    share = 3600 * UsageRecord.objects.first().share_milli  # type: ignore[union-attr]
    filed = [
        {"cost_centre": "", "project": "", "tags": tags, "share_milli_seconds": share}
        for tags in ({"b": "1", "paper": "cvpr"}, {"paper": "iclr"})
    ]
    assert draft.labels == filed

    close_period(period=period_of(FEBRUARY), actor=None, now=CLOSED)

    line = InvoiceLine.objects.get()
    assert line.labels == filed
    assert wrong() == {}
    with pytest.raises(DatabaseError), transaction.atomic():
        execute("UPDATE billing_invoiceline SET labels = NULL")
    client.force_login(world.user("finance"))
    page = client.get("/invoices/perception/2026-02/lines/1/").content.decode()
    assert "Filed under" in page
    assert "paper=iclr" in page
    answer = client.get(
        "/api/v1/invoices/perception/2026-02/", headers={"Authorization": f"Bearer {world.token('finance')}"}
    ).json()
    assert answer["lines"][0]["labels"] == filed

    # Past all guards: what is written on the line breaks the chain, what the usage says no longer fits the line.
    past_all_guards(
        "UPDATE billing_invoiceline SET labels = jsonb_set(labels, '{0,tags,paper}', '\"neurips\"')"
    )
    assert {"chain_is_whole", "labels_are_of_usage"} <= set(wrong())
    InvoiceLine.objects.get()
    past_all_guards("UPDATE billing_invoiceline SET labels = jsonb_set(labels, '{0,tags,paper}', '\"cvpr\"')")
    assert wrong() == {}
    other = UsageLabel.objects.create(digest="0" * 64, tags={"paper": "other"})
    past_all_guards(f"UPDATE billing_usagerecord SET label_id = {other.pk} WHERE label_id IS NOT NULL")
    assert set(wrong()) == {"labels_are_of_usage"}


def test_months_closed_before_lines_held_labels_keep_their_digest(db: None) -> None:
    build_world(now=CLOSED).ended("bob", seconds=3600, at=FEBRUARY, duration_s=7200)
    close_period(period=period_of(FEBRUARY), actor=None, now=CLOSED)
    assert InvoiceLine.objects.get().labels is None
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef('billing_invoice_digest'::regproc)")
        now = cursor.fetchone()[0]
        before = now.replace(
            "|| CASE WHEN l.labels IS NULL THEN '[]'::jsonb ELSE jsonb_build_array(l.labels) END", ""
        )
        assert before != now
        cursor.execute(before)
    assert "chain_is_whole" not in wrong()
