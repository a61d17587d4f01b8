from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.models import OutboxItem
from portal.policies import selectors
from portal.policies.changes import changes, told
from portal.policies.faults import SENTENCES, sentence
from portal.policies.models import Policy
from portal.policies.rules import (
    BACKFILL_TEXTS,
    GROUPS,
    ORDER_TEXTS,
    PLACE_TEXTS,
    RULES,
    days_text,
    length,
    parts_text,
)
from portal.policies.selectors import active_policy, active_version, in_force
from portal.policies.services import activate, built_in, check_body, roll_back, save_policy
from scheduler.engine.order import ORDERS
from scheduler.engine.place.policy import POLICIES
from scheduler.engine.policy import PolicyRules
from scheduler.engine.policy_body import BACKFILLS, BOUNDS, WHY, Fault, body_of
from tests.portal.builders import World


def save(world: World, who: str = "operator", **more: Any) -> Policy:
    """Save a policy as somebody; what is not said is as in the version in force."""
    given: dict[str, Any] = {
        "name": "house rules", "body": {"depth": 2}, "note": "", "based_on": active_version(), **more,
    }  # fmt: skip
    return save_policy(actor=world.user(who), rights=world.rights(who), now=world.now, **given)


def test_a_saved_policy_decides_the_next_turn_and_is_written_down(world: World) -> None:
    row = save(world, note="two promises")

    assert active_policy() == PolicyRules(name="house rules", version=1, depth=2)
    assert (row.made_by, row.note, row.based_on) == (world.user("operator"), "two promises", None)
    written = AuditEntry.objects.filter(action__startswith="policy.").order_by("id")
    assert list(written.values_list("action", "target")) == [
        ("policy.saved", "policy v1"),
        ("policy.activated", "policy v1"),
    ]
    assert OutboxItem.objects.filter(key="policy-1").exists()


def test_an_edit_makes_a_new_version_and_leaves_the_old_one(world: World) -> None:
    save(world)
    save(world, body={"depth": 3})

    rows = list(Policy.objects.order_by("version").values_list("version", "is_active", "based_on"))
    assert rows == [(1, False, None), (2, True, 1)]
    assert Policy.objects.get(version=1).body["depth"] == 2


def test_a_stored_body_names_every_rule(world: World) -> None:
    assert save(world, body={}).body == built_in()


def test_a_draft_is_kept_and_decides_nothing_until_it_is_put_in_force(world: World) -> None:
    save(world)
    draft = save(world, body={"depth": 9}, is_active=False)

    assert active_policy().depth == 2
    activate(
        actor=world.user("operator"), rights=world.rights("operator"), version=draft.version, based_on=1, now=world.now,
    )  # fmt: skip
    assert (active_policy().depth, active_version()) == (9, 2)


def test_a_step_back_is_a_new_version_with_the_old_rules(world: World) -> None:
    save(world)
    save(world, body={"depth": 3})

    row = roll_back(
        actor=world.user("operator"), rights=world.rights("operator"), to=1, based_on=2, now=world.now
    )

    assert (row.version, row.based_on, row.is_active, row.body["depth"]) == (3, 1, True, 2)
    assert Policy.objects.filter(is_active=True).count() == 1


@pytest.mark.parametrize("who", ["alice", "bob", "charlie", "finance", "approver"])
def test_only_operators_change_policies(world: World, who: str) -> None:
    save(world)
    rights, user = world.rights(who), world.user(who)

    with pytest.raises(Forbidden):
        save(world, who)
    with pytest.raises(Forbidden):
        roll_back(actor=user, rights=rights, to=1, based_on=1, now=world.now)
    with pytest.raises(Forbidden):
        activate(actor=user, rights=rights, version=1, based_on=1, now=world.now)
    assert Policy.objects.count() == 1


def test_an_edit_of_what_is_no_longer_in_force_is_refused(world: World) -> None:
    save(world)
    save(world, body={"depth": 3}, based_on=1)

    with pytest.raises(Conflict):
        save(world, body={"depth": 4}, based_on=1)
    with pytest.raises(Conflict):
        activate(
            actor=world.user("operator"),
            rights=world.rights("operator"),
            version=1,
            based_on=1,
            now=world.now,
        )
    assert active_policy().depth == 3


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"body": {"depth": 0}}, "depth"),
        ({"body": {"pools": {"parts": {"training": 0}}}}, "pools.parts"),
        ({"body": []}, "body"),
        ({"name": " "}, "name"),
        ({"name": "x" * 61}, "name"),
        ({"name": "a\x00b"}, "name"),
        ({"note": "x" * 201}, "note"),
    ],
)
def test_what_cannot_be_used_is_named_and_changes_nothing(
    world: World, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        save(world, **given)

    assert list(refused.value.fields) == [field]
    assert not Policy.objects.exists()


def test_saving_what_is_in_force_already_is_refused(world: World) -> None:
    save(world)

    with pytest.raises(Invalid):
        save(world)


def test_a_version_that_is_missing_or_in_force_cannot_be_put_in_force(world: World) -> None:
    save(world)
    given: dict[str, Any] = {
        "actor": world.user("operator"), "rights": world.rights("operator"), "based_on": 1, "now": world.now,
    }  # fmt: skip

    with pytest.raises(NotFound):
        activate(version=7, **given)
    with pytest.raises(Conflict):
        activate(version=1, **given)
    with pytest.raises(Conflict):
        roll_back(to=1, **given)


def test_a_row_that_no_longer_validates_does_not_stop_the_turns(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    selectors._told.clear()
    save(world)
    Policy.objects.filter(version=1).update(activated_at=world.now - timedelta(days=1))
    save(world, body={"depth": 9}, is_active=False)
    save(world, body={"depth": 3})
    Policy.objects.filter(version=3).update(body={"order": "alphabet", "depth": 3})

    with caplog.at_level(logging.ERROR):
        found = [active_policy() for _ in range(3)]

    assert {(p.version, p.depth) for p in found} == {(1, 2)}, "the last one in force, not the draft"
    assert len(caplog.records) == 1
    assert in_force().faults is not None
    assert in_force().row == Policy.objects.get(version=3)
    assert world.turn(world.now) == []


def test_without_any_sound_version_the_built_in_policy_decides(world: World) -> None:
    save(world)
    Policy.objects.update(body=[1, 2])

    assert active_policy() == PolicyRules()


def test_a_version_that_no_longer_validates_cannot_come_back(world: World) -> None:
    save(world)
    save(world, body={"depth": 3})
    Policy.objects.filter(version=1).update(body={"depth": 0})

    with pytest.raises(Conflict, match="depth"):
        roll_back(
            actor=world.user("operator"), rights=world.rights("operator"), to=1, based_on=2, now=world.now
        )


def test_two_policies_differ_rule_by_rule_in_words() -> None:
    new = check_body(
        {
            "order": "priority_fifo",
            "half_life_s": 2 * 86_400 + 3600,
            "pools": {
                "parts": {"interactive": 1, "training": 3},
                "times": [
                    {"days": [0, 1, 2, 3, 4], "from": "08:00", "to": "18:00", "parts": {"interactive": 1}}
                ],
            },
        }
    )

    found = {change.rule.key: (change.was, change.now) for change in changes(built_in(), new)}

    assert found == {
        "half_life_s": (["7 d"], ["2 d 1 h"]),
        "pools.parts": (["no pools"], ["Interactive 25 %, Training 75 %"]),
        "pools.times": (["none"], ["Monday to Friday 08:00–18:00: Interactive 100 %"]),
    }


def test_every_rule_of_the_body_has_its_words() -> None:
    nested = {"pools", "preempting", "sleep"}
    keys = {
        key if key not in nested else f"{key}.{inner}"
        for key, value in body_of(PolicyRules()).items()
        for inner in (value if key in nested else [""])
    }

    assert {rule.key for rule in RULES} == keys
    assert {rule.group for rule in RULES} == {group.name for group in GROUPS}
    assert sum(len(said.rules) for said in told(built_in())) == len(RULES)


def test_every_name_of_the_engine_has_its_words() -> None:
    assert set(ORDERS) <= set(ORDER_TEXTS)
    assert set(PLACE_TEXTS) == set(POLICIES)
    assert set(BACKFILL_TEXTS) == set(BACKFILLS)
    assert set(SENTENCES) == set(WHY)


def test_faults_say_in_the_readers_words_what_the_engine_says() -> None:
    for code, text in WHY.items():
        names = ("least", "most", "known", "other", "day")
        facts = tuple((name, "Monday" if name == "day" else 3) for name in names if f"{{{name}}}" in text)
        fault = Fault("x", code, facts)
        assert sentence(fault) == fault.why


def test_lengths_days_and_parts_read_well() -> None:
    assert [length(s) for s in (0, 90, 86_400 + 30)] == ["0 s", "1 min 30 s", "1 d 30 s"]
    assert days_text([5, 6]) == "Saturday, Sunday"
    assert days_text(list(range(7))) == "every day"
    assert parts_text({"interactive": 1, "training": 2}) == "Interactive 33.3 %, Training 66.7 %"
    assert all(least <= most for least, most in BOUNDS.values())
