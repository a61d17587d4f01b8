from __future__ import annotations

import gzip
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import translation

from portal.audit.models import AuditEntry
from portal.billing.models_energy import LeaseEnergy
from portal.billing.periods import period_of
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.lab import services
from portal.lab.faults import SENTENCES
from portal.lab.models import LabFault, LabRun, LabState
from portal.lab.selectors import anonymous_trace, changed_most, traced
from portal.lab.services import LabWish, begin_next, note, run_of, runs_of, stop_run, submit_run
from portal.leases.models import Lease
from portal.policies.models import Policy
from portal.policies.services import save_policy
from scheduler import lab
from scheduler.lab_history import read_history
from scheduler.replay.history import history_from_json
from scheduler.replay.jobs import jobs_of_text
from scheduler.replay.trace_files import WHY
from tests.portal.builders import World

HEAD = "seq,submit_s,duration_s,gpus,vc\n"
TRACE = HEAD + "".join(f"{n},{n * 300},{600 + n % 7 * 500},{1 + n % 8},team{n % 3}\n" for n in range(60))


def ask(world: World, **more: Any) -> LabRun:
    """Let the operator try two versions on a small trace, or on what is said."""
    given: dict[str, Any] = {"name": "try", "versions": [0, 1], "trace": TRACE, "nodes": 1, **more}
    return submit_run(
        actor=world.user("operator"), rights=world.rights("operator"), wish=LabWish(**given), now=world.now
    )


def draft(world: World, **body: Any) -> Policy:
    return save_policy(
        actor=world.user("operator"), rights=world.rights("operator"), name="try", note="", based_on=0, now=world.now,
        is_active=False, body={"order": "default", "preempting": {"by_score": True}, **body},
    )  # fmt: skip


def carried_out(world: World, row: LabRun) -> LabRun:
    begun = begin_next(now=world.now)
    assert begun is not None
    assert begun.pk == row.pk
    lab.carry_out(row.uid, begun.attempts)
    return LabRun.objects.get(pk=row.pk)


def test_a_trace_is_played_under_each_version_and_drafts_too(world: World) -> None:
    draft(world)

    row = carried_out(world, ask(world))

    assert (row.state, row.progress_milli, row.fault) == (LabState.DONE, 1000, "")
    assert [(one["version"], one["requests"]) for one in row.answers] == [(0, 60), (1, 60)]
    assert list(AuditEntry.objects.filter(target=row.uid).values_list("action", flat=True)) == [
        "lab.submitted"
    ]


def test_who_fares_most_differently_is_kept_and_found_again_where_it_was_not(world: World) -> None:
    draft(world)
    row = carried_out(world, ask(world))
    kept = changed_most(row)

    assert kept
    assert [max(waits) - min(waits) for *_, waits in kept] == sorted(
        (max(waits) - min(waits) for *_, waits in kept), reverse=True
    )
    row.changed_most = None
    assert changed_most(row) == kept


@pytest.mark.deep
def test_the_same_run_twice_has_the_same_digest(world: World) -> None:
    draft(world)

    one, other = carried_out(world, ask(world)), carried_out(world, ask(world))

    assert one.digest == other.digest
    assert bytes(one.played or b"") == bytes(other.played or b"")


def test_own_history_is_what_was_asked_and_how_long_it_ran(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "LEAST_REQUESTS", 2)
    draft(world)
    for _ in range(3):
        world.ended("bob", seconds=600)
    world.submit("bob")
    since = world.now - timedelta(days=1)
    hour = world.now - timedelta(hours=1)
    period_of(hour)
    LeaseEnergy.objects.create(
        lease=Lease.objects.first(), begins=hour, measured_s=0, measured_mj=0,
        estimated_s=600, estimated_mj=60_000_000,
    )  # fmt: skip

    row = carried_out(world, ask(world, trace="", since=since, until=world.now))

    history = history_from_json(gzip.decompress(row.history or b""))
    assert set(history.ran_s) == {600}
    assert {history.teams[claim.team_id - 1] for claim in history.claims} == {world.team("perception").name}
    assert {claim.profile for claim in history.claims} == {"1g.10gb"}
    assert row.answers[0]["requests"] == 3
    assert row.answers[0]["bill"][0]["micro"] > 0
    assert set(history.watts) == {100}
    assert row.answers[0]["energy"] == {"wh": 3 * 600 * 100 // 3600, "unknown": 0}


def test_reading_a_long_history_is_heard_of(world: World) -> None:
    draft(world)
    row = ask(world)
    begun = begin_next(now=world.now)
    assert begun is not None
    ticks = iter(range(0, 100, 2))
    heart = lab.Heart(begun, clock=lambda: next(ticks))
    LabRun.objects.filter(pk=row.pk).update(heard_at=world.now - timedelta(hours=1))
    heard = []

    def beat() -> None:
        heart.beat()
        heard.append(LabRun.objects.get(pk=row.pk).heard_at)

    read_history(world.now - timedelta(days=9), world.now, now=world.now, beat=beat)

    assert len(heard) >= 9
    assert heard[0] > world.now - timedelta(hours=1)
    stop_run(uid=row.uid, actor=world.user("operator"), rights=world.rights("operator"), now=world.now)
    with pytest.raises(services.GoneError):
        beat()


def test_a_heart_beats_at_once_and_then_once_in_a_second(world: World) -> None:
    draft(world)
    row = ask(world)
    begin_next(now=world.now)
    row.attempts, instant = 1, [0.0]
    heart = lab.Heart(row, clock=lambda: instant[0])

    written = []
    for milli, instant[0] in ((1, 0.0), (2, 0.5), (3, 1.0), (4, 1.9)):
        heart.beat(progress_milli=milli)
        written.append(LabRun.objects.get(pk=row.pk).progress_milli)

    assert written == [1, 1, 3, 3]


def test_ten_requests_are_too_few_and_it_says_how_many_are_needed(world: World) -> None:
    draft(world)
    world.ended("bob", seconds=600)

    with pytest.raises(Invalid) as refusal:
        ask(world, trace="", since=world.now - timedelta(days=1), until=world.now)

    assert "at least 50" in str(refusal.value.fields["since"])


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"versions": [0]}, "versions"),
        ({"versions": [0, 0]}, "versions"),
        ({"versions": [0, 99]}, "versions"),
        ({"name": " "}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"nodes": 0}, "nodes"),
        ({"trace": HEAD + "1,0,-5,1,a\n"}, "trace"),
        ({"trace": HEAD + "1,0,5,99,a\n"}, "trace"),
        ({"trace": HEAD + "1,0,5,1,a\n"}, "trace"),
        ({"trace": "x" * 3_000_000}, "trace"),
        ({"trace": TRACE + "99,99999999,5,1,a\n"}, "trace"),
        ({"trace": HEAD + "1,0,999999999999999,1,a\n"}, "trace"),
        ({"what_if": {"demand": 99}}, "what_if"),
        ({"what_if": {"nodes": {"gpu-77": 1}}}, "what_if"),
        ({"what_if": {"teams": {"nobody": 1}}}, "what_if"),
        ({"what_if": {"teams": ["team1"]}}, "what_if"),
        ({"trace": "", "since": None, "until": None}, "since"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_cannot_be_played_is_refused_at_its_field(
    world: World, wish: dict[str, Any], field: str
) -> None:
    draft(world)

    with pytest.raises(Invalid) as refusal:
        ask(world, **wish)

    assert set(refusal.value.fields) == {field}
    assert not LabRun.objects.exists()


def test_what_is_wrong_is_said_in_the_readers_language(world: World) -> None:
    draft(world)
    past = {"trace": "", "since": world.now - timedelta(days=1), "until": world.now}

    with translation.override("zh-hans"):
        with pytest.raises(Invalid) as trace:
            ask(world, trace=HEAD + "1,0,5,99,a\n")
        with pytest.raises(Invalid) as node:
            ask(world, **past, what_if={"nodes": {"gpu\x0077": 1}})

    assert trace.value.fields == {
        "trace": "第 2 行要求 99 个 GPU；所有节点共有 8 个。请增加节点，或去掉这一行。"
    }
    assert "gpu\x0077" in node.value.fields["what_if"]
    assert "没有" in node.value.fields["what_if"]


def test_every_fault_of_the_replay_has_a_sentence_with_its_figures() -> None:
    assert SENTENCES.keys() == WHY.keys()
    for code, said in SENTENCES.items():
        assert set(re.findall(r"%\((\w+)\)", str(said))) <= set(re.findall(r"{(\w+)", WHY[code])), code


def test_changes_that_no_longer_fit_end_a_run_and_say_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "LEAST_REQUESTS", 1)
    draft(world)
    world.ended("bob", seconds=600)
    name = next(iter(world.nodes))
    period = {"trace": "", "since": world.now - timedelta(days=1), "until": world.now}

    row = carried_out(world, ask(world, **period, what_if={"nodes": {name: -9}}))

    assert (row.state, row.fault) == (LabState.FAILED, LabFault.UNFIT)


def test_only_operators_work_in_the_lab(world: World) -> None:
    draft(world)
    row = ask(world)

    for look in (lambda: runs_of(world.rights("alice")), lambda: run_of(world.rights("charlie"), row.uid)):
        with pytest.raises(Forbidden):
            look()
    with pytest.raises(NotFound):
        run_of(world.rights("operator"), "lab-none")


def test_a_run_that_waits_stops_at_once_and_one_that_runs_at_its_next_word(world: World) -> None:
    draft(world)
    operator: dict[str, Any] = {
        "actor": world.user("operator"),
        "rights": world.rights("operator"),
        "now": world.now,
    }
    waiting, running = ask(world), ask(world)

    assert stop_run(uid=waiting.uid, **operator).state == LabState.STOPPED
    begun = begin_next(now=world.now)
    assert begun is not None
    stop_run(uid=running.uid, **operator)
    lab.carry_out(begun.uid, begun.attempts)

    assert run_of(world.rights("operator"), running.uid).state == LabState.STOPPED
    with pytest.raises(Conflict):
        stop_run(uid=running.uid, **operator)


@pytest.mark.deep
def test_a_run_that_died_is_taken_up_where_it_was_and_fails_the_third_time(world: World) -> None:
    draft(world)
    whole = carried_out(world, ask(world))

    again = ask(world)
    begun = begin_next(now=world.now)
    assert begun is not None
    through = json.loads(gzip.decompress(whole.played or b""))[:1]
    note(begun, now=world.now, answers=whole.answers[:1], played=services.packed(through))
    assert begin_next(now=world.now) is None
    later = world.now + timedelta(minutes=2)
    second = begin_next(now=later)
    assert second is not None
    assert second.attempts == 2
    with pytest.raises(services.GoneError):
        note(begun, now=later, progress_milli=500)
    lab.carry_out(again.uid, 1)
    assert LabRun.objects.get(pk=again.pk).state == LabState.RUNNING
    lab.carry_out(again.uid, 2)
    assert LabRun.objects.get(pk=again.pk).answers == whole.answers

    dead = ask(world)
    for minutes in (2, 4, 6):
        assert begin_next(now=world.now + timedelta(minutes=minutes)) is not None
    assert begin_next(now=world.now + timedelta(minutes=8)) is None
    assert run_of(world.rights("operator"), dead.uid).fault == LabFault.ENDED


def test_only_one_runs_at_a_time(world: World) -> None:
    draft(world)
    ask(world)
    other = ask(world)
    begin_next(now=world.now)

    assert begin_next(now=world.now) is None
    with pytest.raises(IntegrityError), transaction.atomic():
        LabRun.objects.filter(pk=other.pk).update(state=LabState.RUNNING)


@pytest.mark.deep
def test_single_requests_say_who_came_later_and_started_first(world: World) -> None:
    draft(world)
    row = carried_out(world, ask(world))

    name, _team, waits = changed_most(row)[0]
    found = traced(world.rights("operator"), row.uid, name)

    assert [one.wait_s for one in found] == waits
    assert any(one.overtaken_by for one in found)
    with pytest.raises(NotFound):
        traced(world.rights("operator"), row.uid, "#999")


def test_the_anonymous_trace_plays_again_without_names(world: World) -> None:
    draft(world)
    row = ask(world)

    text = "".join(anonymous_trace(world.rights("operator"), row.uid))

    assert "team0" not in text
    assert "2017" not in text
    assert len(jobs_of_text(text, "trace", 8).submit) == 60
