"""Many requests by a CSV file: previewed line by line, then all of them or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from portal.leases.models import LeaseRequest
from portal.teams.models import Team
from tests.cli.conftest import Berth, berth, home, one_connection  # noqa: F401
from tests.portal.builders import World
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db
PAGE = "/requests/bulk/"
GOOD = "flavor,hours,count,team,name\nh100-1g-10gb,6,2,perception,run 1\nh100,90 min,,perception,run 2\n"
BAD = GOOD + "no-such,1,1,perception,run 3\nh100,1,900,perception,run 4\nh100,soon,1,vision,run 5\n"


def test_a_preview_keeps_nothing_and_says_what_each_line_would_be(world: World, signed_in: SignedIn) -> None:
    page = signed_in("bob").post(PAGE, {"csv": GOOD, "action": "preview"})

    assert page.status_code == 200
    assert "Send 2 requests" in page.text
    assert [row["duration"] for row in page.context["rows"]] == ["6 h", "1 h 30 min"]
    assert page.context["total"] is not None
    assert not LeaseRequest.objects.exists()


def test_all_lines_are_sent_and_a_second_click_sends_nothing(world: World, signed_in: SignedIn) -> None:
    bob, sent = signed_in("bob"), {"csv": GOOD, "action": "send", "ticket": "t-1"}

    answers = [bob.post(PAGE, sent), bob.post(PAGE, sent)]

    assert [answer["Location"] for answer in answers] == ["/requests/", "/requests/"]
    made = list(LeaseRequest.objects.order_by("id"))
    assert [(one.name, one.count, one.duration_s) for one in made] == [
        ("run 1", 2, 21_600),
        ("run 2", 1, 5_400),
    ]


def test_one_line_that_cannot_be_had_keeps_all_from_being_sent(world: World, signed_in: SignedIn) -> None:
    page = signed_in("bob").post(PAGE, {"csv": BAD, "action": "send", "ticket": "t-2"})

    assert page.status_code == 422
    assert not LeaseRequest.objects.exists()
    faults = {row["number"]: row["faults"] for row in page.context["rows"]}
    assert faults[2] == faults[3] == []
    assert faults[4][0].startswith("flavor: ")
    assert faults[5][0].startswith("count: ")
    assert len(faults[6]) == 2


def test_lines_count_against_a_budget_together_and_say_what_needs_an_approval(
    world: World, signed_in: SignedIn
) -> None:
    Team.objects.filter(slug="perception").update(approval_above_gpu_seconds=3 * 3600)

    page = signed_in("bob").post(PAGE, {"csv": GOOD, "action": "preview"})

    assert [row["needs_approval"] for row in page.context["rows"]] == [False, False]
    assert (
        signed_in("bob")
        .post(PAGE, {"csv": GOOD.replace("90 min", "9"), "action": "preview"})
        .context["rows"][1]["needs_approval"]
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "This field is required"),
        ("\n\n", "names the columns"),
        ("flavor,colour\nh100,red\n", "columns once at most"),
        ("flavor,flavor\nh100,h100\n", "columns once at most"),
        ("flavor,hours\n", "1 to 100 lines"),
        ("flavor,hours\n" + "h100,1\n" * 101, "1 to 100 lines"),
        ("flavor,hours,team\nh100,1,perception,more\n", "more cells than columns"),
        ('flavor,hours\n"h100,1\n', ""),
    ],
)
def test_what_is_no_list_of_requests_is_refused(
    world: World, signed_in: SignedIn, text: str, said: str
) -> None:
    page = signed_in("bob").post(PAGE, {"csv": text, "action": "send"})

    assert page.status_code == 422
    assert said in page.text
    assert not LeaseRequest.objects.exists()


def test_semicolons_and_a_mark_before_the_head_are_read(world: World, signed_in: SignedIn) -> None:
    text = "\ufeffFlavor;Hours;Team;is_preemptible\r\nh100;1,5;perception;yes\r\nh100;1;perception;no\r\n"

    page = signed_in("bob").post(PAGE, {"csv": text, "action": "send"})

    assert page.status_code == 302
    made = list(LeaseRequest.objects.order_by("id"))
    assert [(one.duration_s, one.is_preemptible) for one in made] == [(5400, True), (3600, False)]


def test_only_who_may_ask_sees_the_page(world: World, signed_in: SignedIn) -> None:
    assert signed_in("finance").get(PAGE).status_code == 403
    assert signed_in("charlie").post(PAGE, {"csv": GOOD, "action": "send"}).status_code == 422
    assert not LeaseRequest.objects.exists()


def test_the_command_line_previews_and_sends(world: World, berth: Berth, tmp_path: Path) -> None:  # noqa: F811
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text(GOOD)
    bad.write_text(BAD)

    assert berth("upload", str(good), "--preview").exit_code == 0
    assert berth("upload", str(bad), "--preview").exit_code == 1
    assert berth("upload", str(bad)).exit_code != 0
    assert not LeaseRequest.objects.exists()
    assert "2 asked for" in (done := berth("upload", str(good))).stdout + done.stderr
    assert LeaseRequest.objects.count() == 2
