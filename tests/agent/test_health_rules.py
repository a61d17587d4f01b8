from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodeagent.protocol import fault_rules as rules
from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.fault_rules import FaultRules, RulesError, fact, parse, standard
from nodeagent.protocol.messages import Report

DOCUMENTED = (
    *(8, 13, 31, 32, 38, 43, 45, 46, 48, 61, 62, 63, 64, 68, 69, 74, 79, 92, 94, 95, 109, 110, 119, 120, 121),
    *range(122, 127),
    *(136, 137, 140),
    *range(143, 159),
)
TABLE = json.loads(Path(rules.__file__).with_name("fault_rules.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("xid", DOCUMENTED)
def test_documented_codes_are_in_the_table(xid):
    assert standard().of(str(xid)).name


@pytest.mark.parametrize("xid", [8, 11, 13, 25, 31, 32, 43, 45, 69, 80])
def test_fault_of_a_program_asks_to_restart_it_and_never_takes_a_device_out(xid):
    rule = standard().of_xid(xid)

    assert (rule.who, rule.action, rule.scope) == ("application", "restart_workload", "slice")
    assert rule.severity != "critical"


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 79, 95, 109, 119, 120, 140, 143, 155, 158])
def test_codes_after_which_nvidia_asks_for_a_reset_take_the_device_out(xid):
    told = fact("GPU-1", xid)

    assert (told.device, told.code, told.severity) == ("GPU-1", str(xid), "critical")
    assert told.action in ("reset_gpu", "reboot_node")


def test_contained_memory_error_hits_only_the_slice():
    rule = standard().of_xid(94)

    assert (rule.scope, rule.action, rule.severity, rule.clears) == (
        "slice",
        "restart_workload",
        "warning",
        "restart",
    )


def test_unknown_code_is_a_warning_to_watch_under_its_own_number():
    told = fact("GPU-1", 4711)

    assert (told.code, told.severity, told.action) == ("4711", "warning", "watch")


def test_every_rule_has_a_source_with_an_address_and_a_fact_that_can_be_sent():
    facts = tuple(rules.told(rule, "GPU-1", "twice") for rule in standard())
    report = Report(1, "b", 1, 1, (), (), facts)

    assert all(rule.source.name and rule.source.url for rule in standard())
    assert decode(encode(report)) == report


def test_only_what_a_reset_or_a_person_ends_is_critical():
    assert {rule.clears for rule in standard() if rule.severity == "critical"} == {"reset", "operator"}


def broken(**changes: str) -> str:
    row = {**next(row for row in TABLE["rules"] if row["code"] == "13"), **changes}
    other = next(row for row in TABLE["rules"] if row["code"] == "xid_unknown")
    return json.dumps({"sources": TABLE["sources"], "rules": [row, other]})


def test_table_of_two_rules_is_enough():
    table = parse(broken())

    assert isinstance(table, FaultRules)
    assert len(table) == 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"severity": "bad"}, "use one of info, warning, critical"),
        ({"action": "explode"}, "action is 'explode'"),
        ({"scope": "rack"}, "scope"),
        ({"clears": "never"}, "clears"),
        ({"source": "hearsay"}, "source is 'hearsay'"),
        ({"name": ""}, "needs a code and a name"),
        ({"colour": "red"}, "must have exactly"),
        ({"severity": "critical"}, "must not take a device out of work"),
        ({"action": "reset_gpu"}, "must not take a device out of work"),
        ({"code": "xid_unknown"}, "is there twice"),
    ],
)
def test_wrong_rule_is_refused_by_name(changes, complaint):
    with pytest.raises(RulesError, match=complaint):
        parse(broken(**changes))


@pytest.mark.parametrize("text", ["", "[]", '{"rules": []}', '{"rules": [], "sources": {}}'])
def test_table_that_is_none_is_refused(text):
    with pytest.raises(RulesError):
        parse(text)


def test_page_about_health_has_the_table():
    page = (Path(rules.__file__).parents[2] / "docs" / "health.md").read_text(encoding="utf-8")
    told: dict[str, tuple[str, ...]] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0].startswith("`"):
            told |= {code.strip("`"): tuple(cells[1:]) for code in cells[0].split()}

    assert told == {
        row["code"]: tuple(row[k] for k in ("severity", "action", "scope", "who", "clears", "source"))
        for row in TABLE["rules"]
    }
