"""What changes while a step is on its way, what others did in between, and what cannot be read."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import pytest

from nodeagent.drivers.errors import IN_USE, INVALID_ARGUMENT, NOT_SUPPORTED, UNKNOWN, NvmlLikeError
from nodeagent.protocol.messages import HealthFact
from nodeagent.reconcile.lease_records import NS
from nodeagent.reconcile.steps import carry_out
from nodeagent.reconcile.worker import Worker
from nodeagent.runtimes.base import RuntimeRefusedError
from tests.agent.builder import RecordingRuntime, SimulatedNode, lease


@pytest.fixture
def runtime() -> RecordingRuntime:
    return RecordingRuntime()


@pytest.fixture
def node(tmp_path, runtime) -> SimulatedNode:
    node = SimulatedNode(tmp_path, count=2)
    node.runtime = runtime
    return node.start()


def test_unit_gets_the_new_end_when_it_moves_while_the_unit_is_being_opened(node, runtime):
    short = lease("a", node.mig("1g.10gb", 0), remaining_s=100)
    node.desire(short)
    node.start()  # opens its units once more
    step = node.reconciler.next_step(node.device(), node.time.now)
    outcome = carry_out(node.driver, step, runtime)

    node.desire(replace(short, remaining_s=5000))
    node.reconciler.settle(step, outcome, node.time.now)
    node.work()

    assert step.kind == "open"
    assert runtime.open_leases["a", 1].ends_in_s >= 4900
    assert node.phases() == {"a": "ready"}


def test_unit_gets_the_end_that_its_lease_has_once_it_is_ready(node, runtime, monkeypatch):
    left = iter([True] * 8)

    def refuse_for_a_while(partition: str, cgroup: str) -> None:
        if next(left, False):
            raise NvmlLikeError(IN_USE, "not yet")

    monkeypatch.setattr(node.driver, "confine", refuse_for_a_while)
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=100))
    node.pass_time(60)

    work = node.reconciler.lease_records["a", 1]
    assert work.phase == "ready"
    assert abs(work.armed_for - work.deadline) <= 5 * NS


def test_desired_state_that_the_disk_refused_ages_while_it_waits(node, monkeypatch):
    node.desire()
    monkeypatch.setattr(node.reconciler.ledger, "take", lambda *a: False)
    node.desire(lease("a", node.mig("1g.10gb", 0), remaining_s=60))
    node.pass_time(40)
    monkeypatch.undo()

    node.pass_time(10)

    left_s = (node.reconciler.lease_records["a", 1].deadline - node.time.now) / NS
    assert 5 < left_s <= 20


def test_newer_enrolment_drops_a_desired_state_that_was_never_written(node, monkeypatch):
    monkeypatch.setattr(node.reconciler.ledger, "take", lambda *a: False)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    monkeypatch.undo()

    node.reconciler.meet(9, enrolled=True)
    node.pass_time(20)

    assert node.phases() == {}


def test_lease_ends_on_the_devices_that_are_left_when_one_has_vanished(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0), node.mig("1g.10gb", 0, device=1)))
    node.facts = node.facts[:1]
    node.start()

    node.desire()
    node.pass_time(30)

    assert node.phases() == {"a": "gone"}
    assert runtime.open_leases == {}
    assert node.standing() == []
    assert node.reconciler.next_wake() is None


def test_unit_that_outlived_a_reboot_is_closed_under_the_record_of_its_lease(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.time.advance(100)
    node.desire()
    before = node.reports()["a"]
    runtime.open_leases["a", 1] = runtime.open_leases.get(("a", 1)) or object()

    node.reboot()
    node.look()
    node.work()
    after = node.reports()["a"]

    assert (before.phase, before.active_ms) == ("gone", 100_000)
    assert (after.phase, after.reason, after.active_ms) == ("gone", "withdrawn", 100_000)
    assert runtime.open_leases == {}


def test_unit_that_is_still_open_is_closed_before_the_first_look_of_a_new_life(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.desire()
    runtime.open_leases["a", 1] = object()  # a look found it, and the agent died before it was closed

    node.start()
    node.work()

    assert runtime.open_leases == {}
    assert node.phases() == {"a": "gone"}


def test_how_long_a_stray_was_used_is_unknown(node, runtime):
    node.desire()
    runtime.open_leases["ghost", 3] = object()

    node.look()
    node.work()

    assert node.reports()["ghost"].active_ms is None


def test_slice_that_somebody_else_made_first_is_never_taken_for_ours(node):
    node.desire()
    node.driver.add_foreign(node.device(), "1g.10gb", 0)  # after the last look, before the lease

    node.desire(lease("a", node.mig("1g.10gb", 0)))
    told = node.reports()["a"]
    node.desire()

    assert (told.phase, told.code) == ("failed", "conflict")
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 0)]


def test_slice_that_somebody_else_made_while_the_agent_was_down_is_never_taken_for_ours(node):
    kept = lease("b", node.mig("1g.10gb", 6))
    node.desire(kept)
    node.accept(kept, lease("a", node.mig("1g.10gb", 0)))
    node.reconciler.next_step(node.device(), node.time.now)  # dies on the way to the device
    node.driver.add_foreign(node.device(), "1g.10gb", 0)

    node.start()
    node.work()
    told = node.reports()["a"]
    node.desire(kept)
    node.desire()

    assert (told.phase, told.code) == ("failed", "conflict")
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 0)]


def test_place_that_an_earlier_version_had_not_begun_is_not_ours(node):
    node.desire()
    node.accept(lease("a", node.mig("1g.10gb", 0)))
    journal = node.state / "journal.jsonl"
    row = json.loads(journal.read_text().splitlines()[-1])
    row["places"][0] |= {"ours": True, "begun": False}  # as it was written when the lease was taken
    with journal.open("a") as file:
        file.write(json.dumps(row) + "\n")
    node.driver.add_foreign(node.device(), "1g.10gb", 0)

    node.start()
    node.work()
    told = node.reports()["a"]
    node.desire()

    assert (told.phase, told.code) == ("failed", "conflict")
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 0)]


def test_slice_that_somebody_else_made_after_the_last_look_stays(node, monkeypatch):
    create = node.driver.create

    def be_late(device: str, *rest):
        monkeypatch.undo()
        node.driver.add_foreign(device, "1g.10gb", 0)
        return create(device, *rest)

    monkeypatch.setattr(node.driver, "create", be_late)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    told = node.reports()["a"]
    node.desire()

    assert (told.phase, told.code) == ("failed", "conflict")
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 0)]


def test_slice_that_appears_between_look_and_making_is_not_ours(node):
    node.accept(lease("a", node.mig("1g.10gb", 0)))
    while (step := node.reconciler.next_step(node.device(), node.time.now)).kind != "make":
        node.reconciler.settle(step, carry_out(node.driver, step), node.time.now)
        node.reconciler.ledger.save()

    node.driver.add_foreign(node.device(), "1g.10gb", 0)
    node.reconciler.settle(step, carry_out(node.driver, step), node.time.now)
    told = node.reports()["a"]
    node.desire()

    assert (told.phase, told.code) == ("failed", "conflict")
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 0)]


def test_slice_that_somebody_else_made_between_two_lives_of_the_agent_stays(node):
    two = lease("a", node.mig("1g.10gb", 0), node.mig("1g.10gb", 1))
    node.accept(two)
    while (step := node.reconciler.next_step(node.device(), node.time.now)).kind != "make":
        node.reconciler.settle(step, carry_out(node.driver, step), node.time.now)
    node.reconciler.settle(step, carry_out(node.driver, step), node.time.now)
    node.reconciler.ledger.save()  # one place is made, the other was seen free; here the agent dies
    node.driver.add_foreign(node.device(), "1g.10gb", 1)

    node.start()
    node.work()
    told = node.reports()["a"]
    node.desire()

    assert (told.phase, told.code) == ("failed", "conflict")
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 1)]


def test_slice_at_a_place_that_was_never_begun_stays_when_its_lease_is_withdrawn(node):
    node.accept(lease("a", node.mig("1g.10gb", 0)))
    place = node.reconciler.lease_records["a", 1].places[0]
    while not place.is_fresh:
        step = node.reconciler.next_step(node.device(), node.time.now)
        node.reconciler.settle(step, carry_out(node.driver, step), node.time.now)
    node.driver.add_foreign(node.device(), "1g.10gb", 0)

    node.desire()

    assert step.kind == "look"
    assert node.phases() == {"a": "gone"}
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 0)]


def test_slice_that_appears_after_another_place_failed_the_lease_stays(node, monkeypatch):
    def refuse(*words: object) -> None:
        raise NvmlLikeError(INVALID_ARGUMENT, "no such size")

    monkeypatch.setattr(node.driver, "create", refuse)
    node.desire(lease("a", node.mig("1g.10gb", 0), node.mig("1g.10gb", 1)))
    told = node.reports()["a"]
    node.driver.add_foreign(node.device(), "1g.10gb", 1)
    node.start()  # what the journal says of the place is the same
    node.look()
    seen = node.partitions()
    node.desire()

    assert told.phase == "failed"
    assert seen == {("1g.10gb", 1, "")}
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 1)]


def test_slice_that_appears_while_somebody_else_switches_mig_is_not_ours(node, monkeypatch):
    def be_late(device: str, *rest: object) -> None:
        monkeypatch.undo()
        node.driver.set_mig_mode(device, False)
        raise NvmlLikeError(NOT_SUPPORTED, "MIG is off")

    monkeypatch.setattr(node.driver, "create", be_late)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.driver.set_mig_mode(node.device(), True)
    node.driver.add_foreign(node.device(), "1g.10gb", 0)
    node.pass_time(10)
    told = node.reports()["a"]
    node.desire()

    assert (told.phase, told.code) == ("failed", "conflict")
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 0)]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_slice_that_takes_the_place_of_one_that_was_removed_under_its_lease_stays(tmp_path, is_restarted):
    node = SimulatedNode(tmp_path)
    node.runtime = RecordingRuntime()
    node.start()
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    removed = node.standing()[0].uuid
    node.driver.detach(removed, kill=True)
    node.driver.processes(removed)
    node.driver.destroy(removed)
    node.look()
    told = node.reports()["a"]
    node.driver.add_foreign(node.device(), "1g.10gb", 0)
    if is_restarted:
        node.start()
    node.look()
    seen = node.partitions()

    node.desire()
    node.pass_time(20)

    assert (told.phase, told.code) == ("failed", "partition_lost")
    assert seen == {("1g.10gb", 0, "")}
    assert node.phases() == {"a": "gone"}
    assert node.runtime.open_leases == {}
    assert [part.uuid for part in node.standing()] == [removed], "devices give the next one the same name"


def test_place_of_a_failed_lease_that_was_seen_empty_is_not_ours(node, monkeypatch):
    def refuse(*words: object) -> None:
        monkeypatch.setattr(node.driver, "observe", refuse)
        raise NvmlLikeError(UNKNOWN, "nothing is known of the device")

    monkeypatch.setattr(node.driver, "create", refuse)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    monkeypatch.undo()
    told = node.reports()["a"]
    node.look()
    node.driver.add_foreign(node.device(), "1g.10gb", 0)

    node.desire()
    node.pass_time(10)

    assert told.phase == "failed"
    assert node.phases() == {"a": "gone"}
    assert [(part.profile, part.start) for part in node.standing()] == [("1g.10gb", 0)]


def test_what_we_made_before_we_died_is_still_ours(node, monkeypatch):
    def die(partition: str):
        raise NvmlLikeError(UNKNOWN, "the power went")

    monkeypatch.setattr(node.driver, "access", die)
    node.accept(lease("a", node.mig("1g.10gb", 0)))
    while (
        step := node.reconciler.next_step(node.device(), node.time.now)
    ) is not None and step.kind != "make":
        node.reconciler.settle(step, carry_out(node.driver, step), node.time.now)
        node.reconciler.ledger.save()
    carry_out(node.driver, step)  # nobody hears how it went
    monkeypatch.undo()
    left = node.standing()

    node.start()
    node.work()

    assert [part.profile for part in left] == ["1g.10gb"]
    assert node.phases() == {"a": "ready"}
    assert node.standing() == [replace(left[0], lease=node.standing()[0].lease)]


def test_nothing_is_made_that_the_disk_does_not_know_of(node, monkeypatch):
    node.desire()
    monkeypatch.setattr(node.reconciler.ledger, "save", lambda: False)
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    before = node.standing()
    monkeypatch.undo()

    node.pass_time(10)

    assert before == []
    assert node.phases() == {"a": "ready"}


def test_silence_of_the_devices_is_no_good_news(node, monkeypatch):
    fact = HealthFact(node.device(), "63", "warning", "row remap pending")
    node.reconciler.observe_health((fact,), node.time.now)

    node.reconciler.observe_health(None, node.time.now)
    silent = node.reconciler.health_facts()
    node.reconciler.observe_health((fact,), node.time.now)

    assert {f.code for f in silent} == {"63", "health_unreadable"}
    assert node.reconciler.health_facts() == (fact,)


def test_agent_sleeps_until_something_is_really_due(node, monkeypatch):
    device_1 = node.device(1)

    def refuse(partition: str, cgroup: str) -> None:
        if (
            node.reconciler.observed.facts[device_1]
            and partition == node.reconciler.observed.facts[device_1][0].uuid
        ):
            raise NvmlLikeError(IN_USE, "not yet")

    monkeypatch.setattr(node.driver, "confine", refuse)

    node.desire(lease("a", node.mig("1g.10gb", 0), node.mig("2g.20gb", 2, device=1)))

    assert node.phases() == {"a": "preparing"}
    assert node.reconciler.next_wake() > node.time.now


async def test_device_that_does_not_answer_holds_up_no_end(tmp_path, monkeypatch):
    node = SimulatedNode(tmp_path, count=2)
    node.faults.latency_s["observe"] = 1e-6  # calls off the loop
    node.start()
    node.desire(lease("a", node.whole(1), remaining_s=100, grace_s=0))
    stuck, free = threading.Event(), threading.Event()
    observe = node.driver.observe

    def hang(device: str):
        if device == node.device(0):
            stuck.set()
            free.wait(20)
        return observe(device)

    monkeypatch.setattr(node.driver, "observe", hang)
    worker = Worker(node.reconciler, node.driver, node.time)
    run = asyncio.create_task(worker.run())
    try:
        await asyncio.to_thread(stuck.wait, 10)
        node.time.advance(101)
        worker.drive()
        async with asyncio.timeout(10):
            while node.reconciler.lease_records["a", 1].phase != "gone":
                await worker.changed.wait()
                worker.changed.clear()
    finally:
        free.set()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    assert node.reconciler.lease_records["a", 1].reason == "expired"


def test_runtime_that_is_busy_when_the_end_comes_is_asked_again(node, runtime):
    node.desire(lease("a", node.mig("1g.10gb", 0), grace_s=1))
    close = runtime.close
    left = iter([True] * 3)

    def busy(key, *, kill):
        if next(left, False):
            raise RuntimeRefusedError("busy", "the manager does not answer", is_passing=True)
        close(key, kill=kill)

    runtime.close = busy
    node.desire()
    node.pass_time(5)

    assert node.phases() == {"a": "gone"}
