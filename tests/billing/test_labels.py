"""Cost centre, project and tags: what usage is filed under, from the request to the report and its files."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import DatabaseError, transaction

from portal.billing.charges import charges_of
from portal.billing.closing import close_period
from portal.billing.focus import write_focus
from portal.billing.labels import (
    add_project,
    change_project,
    label_request,
    label_team,
    request_labels,
    tag_names,
    visible_projects,
)
from portal.billing.metering import meter_all
from portal.billing.models import UsageLabel, UsageRecord
from portal.billing.report import GroupBy, report_of
from portal.billing.selectors import period_of
from portal.catalog.pricing import SHARE_HOUR
from portal.common.errors import Forbidden, Invalid
from portal.leases.models import Lease
from portal.teams.labels import check_tags, tags_of, tags_text
from portal.teams.models import Project, Team
from portal.web.reports import files
from tests.portal.builders import World, build_world

FEBRUARY = datetime(2026, 2, 5, 9, tzinfo=UTC)


@pytest.fixture
def world(db: None) -> World:
    return build_world(now=datetime(2026, 3, 10, 9, tzinfo=UTC))


def project(world: World, code: str = "EU-4711", **more: object) -> Project:
    given = {"name": "Segmentation", "cost_centre": "CC-9", "tags": {"grant": "horizon"}} | more
    return add_project(
        team=world.team("vision"), code=code, rights=world.rights("alice"), now=world.now, **given
    )  # type: ignore[arg-type]


def ran(world: World, day: int, *, seconds: int = 3600) -> Lease:
    return world.ended("bob", seconds=seconds, at=FEBRUARY.replace(day=day), duration_s=7200)


def file_under(world: World, lease: Lease, code: str = "", who: str = "bob", **tags: str) -> None:
    label_request(
        request=lease.request,
        project=code,
        cost_centre=None,
        tags=tags,
        rights=world.rights(who),
        now=world.now,
    )


def spent(world: World, by: GroupBy, tag: str = "") -> dict[str, int]:
    report = report_of(period_of(FEBRUARY), list(Team.objects.all()), by=by, tag=tag, now=world.now)
    assert sum(row.cost_micro for row in report.groups) == report.whole.cost_micro
    assert sum(row.leases for row in report.groups) == 3
    exact = sum(sum(day.values()) for day in report.exact_by_day.values())
    assert abs(exact - report.whole.cost_micro * SHARE_HOUR) < SHARE_HOUR * 10_000
    return {row.name: row.cost_micro for row in report.groups}


def test_a_month_adds_up_by_project_tag_and_cost_centre(world: World) -> None:
    project(world)
    label_team(
        team=world.team("perception"), cost_centre="CC-1", tags={"site": "berlin", "paper": "none"},
        rights=world.rights("finance"), now=world.now,
    )  # fmt: skip
    leases = [ran(world, day, seconds=1000 * day) for day in (1, 2, 3)]
    file_under(world, leases[0], "EU-4711", paper="iclr")
    file_under(world, leases[1], paper="cvpr")
    meter_all(now=world.now)
    whole = sum(spent(world, GroupBy.PERSON).values())

    assert set(spent(world, GroupBy.PROJECT)) == {"EU-4711", ""}
    assert set(spent(world, GroupBy.COST_CENTRE)) == {"CC-9", "CC-1"}
    papers = spent(world, GroupBy.TAG, "paper")
    assert set(papers) == {"iclr", "cvpr", "none"}
    assert papers["iclr"] < papers["cvpr"] < papers["none"]
    assert sum(papers.values()) == whole
    assert set(spent(world, GroupBy.TAG, "site")) == {"berlin"}
    assert tag_names(Team.objects.all(), period_of(FEBRUARY).pk) == ["grant", "paper", "site"]


def test_what_is_filed_anew_moves_in_open_months_and_never_in_closed_ones(world: World) -> None:
    made = project(world)
    lease = ran(world, 1)
    for day in (2, 3):
        ran(world, day)
    meter_all(now=world.now)
    assert set(spent(world, GroupBy.PROJECT)) == {""}

    file_under(world, lease, "EU-4711", paper="iclr")
    change_project(
        project=made, name="Other", cost_centre="CC-8", tags={}, is_ended=True, rights=world.rights("finance"),
        now=world.now,
    )  # fmt: skip
    assert set(spent(world, GroupBy.PROJECT)) == {"EU-4711", ""}
    assert "CC-8" in spent(world, GroupBy.COST_CENTRE)
    assert tag_names(Team.objects.all(), period_of(FEBRUARY).pk) == ["paper"]

    close_period(period=period_of(FEBRUARY), actor=None, now=world.now)
    was = list(UsageRecord.objects.order_by("pk").values_list("label", flat=True))
    file_under(world, lease, "EU-4711", paper="other")
    assert list(UsageRecord.objects.order_by("pk").values_list("label", flat=True)) == was
    assert request_labels(lease.request).tag("paper") == "other"
    for attack in (
        lambda: UsageRecord.objects.update(label=None),
        lambda: UsageLabel.objects.update(project="X"),
        lambda: UsageLabel.objects.all().delete(),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            attack()


def test_usage_of_an_open_month_can_only_be_filed_anew(world: World) -> None:
    ran(world, 1)
    meter_all(now=world.now)
    label = UsageLabel.objects.create(digest="x", project="P")

    assert UsageRecord.objects.update(label=label) == 1
    with pytest.raises(DatabaseError, match="never changes"), transaction.atomic():
        UsageRecord.objects.update(label=None, micro_per_hour=1)


def test_files_name_project_and_tags_and_add_up(world: World) -> None:
    project(world)
    leases = [ran(world, day, seconds=1000 * day + 7) for day in (1, 2, 3)]
    file_under(world, leases[0], "EU-4711", paper="iclr")
    meter_all(now=world.now)
    period, teams = period_of(FEBRUARY), list(Team.objects.all())
    charges = charges_of(period, teams)

    out = io.BytesIO()
    write_focus(out, period, charges)
    rows = {
        row["ResourceId"]: json.loads(row["Tags"])
        for row in csv.DictReader(io.StringIO(out.getvalue().decode()))
    }
    labels = {"project": "EU-4711", "cost_centre": "CC-9", "grant": "horizon", "paper": "iclr"}
    assert labels.items() <= rows[leases[0].uid].items()
    assert "project" not in rows[leases[1].uid]

    text = b"".join(files.answer("lines.csv", period, teams, person="", slug="")).decode("utf-8-sig")  # type: ignore[arg-type]
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [(line["project"], line["tags"], line["leases"]) for line in lines] == [
        ("EU-4711", "grant=horizon, paper=iclr", "1"),
        ("", "", "2"),
    ]
    assert sum(round(float(line["amount"]) * 1_000_000) for line in lines) == sum(
        c.amount_micro for c in charges
    )
    assert sum(int(line["seconds"]) for line in lines) == sum(c.seconds for c in charges)


def test_only_those_who_should_file_and_make_projects(world: World) -> None:
    project(world)
    lease = ran(world, 1)
    mine = {"project": "EU-4711", "tags": {}, "now": world.now}

    label_request(request=lease.request, cost_centre=None, rights=world.rights("bob"), **mine)  # type: ignore[arg-type]
    for who, centre in (("bob", "CC-7"), ("charlie", None)):
        with pytest.raises(Forbidden):
            label_request(request=lease.request, cost_centre=centre, rights=world.rights(who), **mine)  # type: ignore[arg-type]
    found = label_request(request=lease.request, cost_centre="CC-7", rights=world.rights("alice"), **mine)  # type: ignore[arg-type]
    assert found.cost_centre == "CC-7"
    for who in ("bob", "charlie"):
        with pytest.raises(Forbidden):
            add_project(
                team=world.team("vision"), code="B", name="B", cost_centre="", tags={}, rights=world.rights(who),
                now=world.now,
            )  # fmt: skip
        with pytest.raises(Forbidden):
            label_team(
                team=world.team("vision"), cost_centre="", tags={}, rights=world.rights(who), now=world.now
            )
    assert [one.code for one in visible_projects(world.rights("bob"))] == ["EU-4711"]
    assert visible_projects(world.rights("charlie")) == []


def test_a_request_names_a_project_of_its_team_that_is_open(world: World) -> None:
    made = project(world)
    asked = world.submit("bob", project="EU-4711", tags={"paper": "iclr", "empty": " "})
    assert request_labels(asked).tags == (("grant", "horizon"), ("paper", "iclr"))

    for who, code in (("charlie", "EU-4711"), ("bob", "no-such")):
        with pytest.raises(Invalid) as refused:
            world.submit(who, project=code)
        assert set(refused.value.fields) == {"project"}
    change_project(
        project=made,
        name="x",
        cost_centre="",
        tags={},
        is_ended=True,
        rights=world.rights("alice"),
        now=world.now,
    )
    with pytest.raises(Invalid):
        world.submit("bob", project="EU-4711")


@pytest.mark.parametrize(
    "wrong",
    ["paper", "Paper=x", "1x=y", "cost_centre=1", "paper=" + "x" * 81, "paper=a\x07b",
     ", ".join(f"t{n}=x" for n in range(11))],
)  # fmt: skip
def test_a_tag_that_cannot_be_one_is_named(wrong: str) -> None:
    with pytest.raises(Invalid) as refused:
        tags_of(wrong)
    assert set(refused.value.fields) == {"tags"}


def test_tags_are_read_as_they_are_written() -> None:
    tags = check_tags({"paper": " iclr ", "gone": "", "a.b-c_1": "x=y"})
    assert tags == {"a.b-c_1": "x=y", "paper": "iclr"}
    assert tags_of(tags_text(tags)) == tags


def test_accruing_usage_is_filed_by_what_holds_now(world: World) -> None:
    world.active("bob", at=world.now - timedelta(hours=2), duration_s=4 * 3600, tags={"paper": "iclr"})

    report = report_of(
        period_of(world.now), list(Team.objects.all()), by=GroupBy.TAG, tag="paper", now=world.now
    )

    assert {row.name: row.accruing_micro > 0 for row in report.groups} == {"iclr": True}
