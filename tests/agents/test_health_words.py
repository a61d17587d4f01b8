"""Whatever an agent calls a fault, people are told in words what it means and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nodeagent
from nodeagent.drivers.vendor import LOST
from nodeagent.protocol.fault_rules import UNKNOWN_XID, standard
from nodeagent.protocol.limits import ACTIONS
from portal.fleet.health_words import action_text, code_text

# HealthFact(device, "code", …) in the agent's own sources: what it says beside its table.
SAID = re.compile(r'HealthFact\(\s*[^,()]+,\s*"([a-z_]+)"')


def codes_in_sources() -> set[str]:
    sources = Path(nodeagent.__file__).parent.rglob("*.py")
    return {code for path in sources for code in SAID.findall(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("code", [rule.code for rule in standard()])
def test_every_fault_of_the_table_has_words(code):
    assert code_text(code)


def test_every_fault_that_the_agent_names_beside_its_table_has_words():
    codes = {*codes_in_sources(), LOST}

    assert {"journal_unwritable", "desired_refused", "tool_unreadable", "share_unread"} <= codes
    assert {code for code in codes if not code_text(code)} == set()


def test_every_action_has_words():
    assert [action for action in ACTIONS if action and not action_text(action)] == []


def test_time_out_that_ends_a_card_is_not_called_a_memory_error():
    assert "did not answer in time" in code_text("158")
    assert "memory" not in code_text("158")


def test_code_that_nobody_knows_gets_no_words_of_its_own():
    assert code_text("4711") == ""
    assert code_text(UNKNOWN_XID)
