from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from portal.policies.rules import RULES, value_at
from scheduler.engine.order import ORDERS
from scheduler.engine.place.policy import POLICIES
from scheduler.engine.policy import WORKS, PolicyRules, Pools, Preempting, Sleep
from scheduler.engine.policy_body import BOUNDS, MOST_TIMES, body_of, policy_from
from tests.docs.test_docs_equal_code import DOCS, names, rows

GROUPS: dict[str, type[Any]] = {"pools": Pools, "preempting": Preempting, "sleep": Sleep}
TEXT = (DOCS / "policies.md").read_text()


def keys() -> set[str]:
    """Return the dotted names of every rule, from the dataclasses."""
    plain = {f.name for f in fields(PolicyRules)} - {"name", "version", *GROUPS}
    return plain | {f"{group}.{f.name}" for group, kind in GROUPS.items() for f in fields(kind)}


def test_the_page_lists_every_rule_with_its_default_and_bounds() -> None:
    page = {next(iter(names(c[0]))): c for c in rows("policies.md") if names(c[0])}
    built_in = body_of(PolicyRules())

    assert set(page) == keys() == {rule.key for rule in RULES}
    for key, cells in page.items():
        assert json.loads(cells[2].strip("`")) == value_at(built_in, key), key
        bounds = BOUNDS.get("part" if key == "pools.parts" else key)
        if bounds:
            assert cells[3] == f"{bounds[0]:g}–{int(bounds[1])}", key
    assert page["sleep.times"][3] == f"at most {MOST_TIMES}"


def test_the_page_names_every_order_placement_and_kind_of_work() -> None:
    told = {
        name
        for line in re.findall(r"\*\*(?:Orders|Kinds of work)\*\*.*", TEXT)
        for name in re.findall(r"`([^`]+)`", line)
    }

    assert set(ORDERS) | set(POLICIES) | set(WORKS) == told


def test_the_example_of_the_page_is_a_policy() -> None:
    [example] = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)

    assert policy_from(json.loads(example)).preempting.grace_s == 300
