"""The lab on pages: a run is asked for, done, looked at, stopped; only operators see it."""

from __future__ import annotations

import pytest

from portal.lab import selectors
from portal.lab.models import LabRun, LabState
from portal.lab.services import begin_next
from scheduler import lab
from tests.portal.builders import World
from tests.portal.test_lab import TRACE, draft
from tests.web.conftest import SignedIn

PAGE = "/operations/lab/"


def given(text: str = TRACE, **more: object) -> dict[str, object]:
    return {
        "name": "first", "versions": ["0", "1"], "demand": "1.0", "seed": "1", "nodes": "1", "gpus_per_node": "8",
        "trace": text, **more,
    }  # fmt: skip


def test_an_operator_tries_two_versions_and_reads_them_side_by_side(
    world: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft(world)
    operator = signed_in("operator")
    assert operator.post(PAGE, given()).status_code == 302
    assert "There is no team Vision to go by." in operator.post(PAGE, given(team_like="Vision")).text
    run = LabRun.objects.get()
    one = f"{PAGE}{run.uid}/"
    assert "0 % played" in operator.get(one).text
    begun = begin_next(now=world.now)
    assert begun is not None
    lab.carry_out(run.uid, begun.attempts)

    with monkeypatch.context() as patched:
        patched.setattr(selectors, "gzip", None)  # nothing is unpacked for the page
        page = operator.get(one).text
    for words in (
        "Wait by team",
        "team2",
        "Mean wait by the hour of coming",
        "Built-in rules",
        "Started by the promised time",
        "What a run cannot know",
    ):
        assert words in page, words
    assert "it waited" in operator.get(one, {"request": "#40"}).text
    assert "No such request" in operator.get(one, {"request": "#400"}).text
    assert operator.get(f"{one}trace.csv").text.startswith("seq,submit_s")
    assert operator.post(f"{one}stop/", follow=True).text.count("over already") == 1


def test_others_see_nothing_of_it(world: World, signed_in: SignedIn) -> None:
    draft(world)
    signed_in("operator").post(PAGE, given())
    uid = LabRun.objects.get().uid

    for who in ("alice", "charlie", "finance"):
        person = signed_in(who)
        assert {
            person.get(path).status_code for path in (PAGE, f"{PAGE}{uid}/", f"{PAGE}{uid}/trace.csv")
        } == {403}
        assert person.post(f"{PAGE}{uid}/stop/").status_code == 403
    assert LabRun.objects.get().state == LabState.QUEUED


def test_what_cannot_be_played_is_said_at_its_field(world: World, signed_in: SignedIn) -> None:
    draft(world)
    operator = signed_in("operator")

    for wrong, words in (
        (given("seq,submit_s,duration_s,gpus\n1,0,-5,1\n"), "Line 2, column duration_s"),
        (given(versions=["0"]), "two to six"),
        (given(demand="77"), "less than or equal to 5"),
        (given(nodes="", gpus_per_node=""), "nodes to run on"),
    ):
        answer = operator.post(PAGE, wrong)
        assert answer.status_code == 422
        assert words in answer.text, words
    assert not LabRun.objects.exists()
    assert operator.get(f"{PAGE}lab-none/").status_code == 404


def test_a_run_that_waits_is_stopped(world: World, signed_in: SignedIn) -> None:
    draft(world)
    operator = signed_in("operator")
    operator.post(PAGE, given())
    uid = LabRun.objects.get().uid

    assert "The run stops." in operator.post(f"{PAGE}{uid}/stop/", follow=True).text
    assert LabRun.objects.get().state == LabState.STOPPED
