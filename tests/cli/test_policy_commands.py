from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from portal.policies.models import Policy
from portal.quotas.models import Cohort, PriorityGrant, Quota
from tests.portal.builders import World


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    found = tmp_path / "rules.json"
    found.write_text(json.dumps({"depth": 3}))
    return found


def test_rules_are_kept_in_a_file_checked_saved_and_rolled_back(berth: Any, rules: Path) -> None:
    assert "built-in rules decide" in berth("policy", "list", who="operator").stderr
    checked = berth("policy", "check", str(rules), "--preview", who="operator")
    first = berth("policy", "save", str(rules), "--name", "house", "--note", "three", who="operator")
    rules.write_text(json.dumps({"depth": 5}))
    second = berth("policy", "save", str(rules), who="operator")
    shown = berth("policy", "diff", "1", "2", who="operator")
    back = berth("policy", "rollback", "1", who="operator")

    assert ("depth" in checked.stdout, "no snapshot" in checked.stderr) == (True, True)
    assert (first.stdout, second.stdout, back.stdout) == ("1\n", "2\n", "3\n")
    assert "depth" in shown.stdout
    assert json.loads(berth("policy", "show", "3", who="operator").stdout)["depth"] == 3
    row = Policy.objects.get(is_active=True)
    assert (row.version, row.name, row.based_on) == (3, "house", 1)
    assert "active" in berth("policy", "list", who="operator").stdout


def test_a_draft_waits_until_it_is_put_in_force(berth: Any, rules: Path) -> None:
    berth("policy", "save", str(rules), who="operator")
    rules.write_text("{}")

    draft = berth("policy", "save", "-", "--draft", who="operator", typed="{}")
    assert Policy.objects.get(is_active=True).version == 1
    put = berth("policy", "activate", "2", "--json", who="operator")

    assert draft.stdout == "2\n"
    assert json.loads(put.stdout)["is_active"] is True


def test_what_is_wrong_with_rules_is_said_by_field(berth: Any, rules: Path) -> None:
    rules.write_text('{"depth": 0, "pools": {"parts": {"training": 0}}}')

    done = berth("policy", "check", str(rules), who="operator")

    assert done.exit_code == 1
    assert "depth: At least 1." in done.stderr
    assert "pools.parts: At least one part" in done.stderr


@pytest.mark.parametrize("text", ["{", "", "[" * 5000])
def test_a_file_that_is_not_json_is_wrong_usage(berth: Any, rules: Path, text: str) -> None:
    rules.write_text(text)

    assert berth("policy", "save", str(rules), who="operator").exit_code == 2
    assert berth("policy", "save", str(rules) + ".none", who="operator").exit_code == 2


@pytest.mark.parametrize("words", [("policy", "list"), ("policy", "show", "1"), ("cohort", "list")])
def test_others_are_refused(berth: Any, words: tuple[str, ...]) -> None:
    done = berth(*words, who="charlie")

    assert done.exit_code == 1
    assert "Only operators" in done.stderr


def test_cohorts_and_quotas_from_the_command_line(world: World, berth: Any) -> None:
    key = berth("cohort", "create", "pool", who="operator").stdout.strip()
    berth("cohort", "rename", key, "deep pool", who="operator")
    done = berth(
        "quota", "set", "vision", "--guaranteed", "2", "--lending", "1.5", "--cohort", key, who="operator"
    )

    row = Quota.objects.get(team__slug="vision")
    assert done.exit_code == 0, done.stderr
    assert (row.guaranteed_milli, row.lending_milli, row.ceiling_milli) == (2000, 1500, 8000)
    assert "deep pool" in berth("quota", "show", "vision", who="alice").stdout
    assert "vision" in berth("cohort", "list", who="operator").stdout
    assert berth("cohort", "remove", key, who="operator").exit_code == 1
    berth("quota", "set", "vision", "--alone", "--all", "--unbounded", who="operator")
    row.refresh_from_db()
    assert (row.cohort_id, row.lending_milli, row.ceiling_milli) == (None, None, None)
    assert berth("cohort", "remove", key, who="operator").exit_code == 0
    assert not Cohort.objects.exists()


def test_priority_is_given_and_revoked(world: World, berth: Any) -> None:
    made = berth(
        "priority", "give", "perception", "--reason", "paper deadline", "--until", "2900-01-01T00:00Z",
        "--from", "2899-12-30T00:00Z", "--steps", "7", who="alice",
    )  # fmt: skip

    assert made.exit_code == 0, made.stderr
    grant = PriorityGrant.objects.get()
    assert (grant.steps, made.stdout.strip()) == (7, str(grant.pk))
    assert "paper deadline" in berth("priority", "list", "perception", who="bob").stdout
    assert "revoked" in berth("priority", "revoke", "perception", str(grant.pk), who="alice").stderr


def test_priority_of_a_strange_team_is_a_missing_one(berth: Any) -> None:
    words = ("--reason", "x", "--until", "2900-01-01T00:00Z")

    assert "nothing here" in berth("priority", "give", "perception", *words, who="charlie").stderr
    assert berth("priority", "give", "perception", "--reason", "x", "--until", "soon").exit_code == 2


def test_a_quota_is_tried_before_it_is_set(berth: Any, world: World) -> None:
    tried = berth("quota", "set", "perception", "--ceiling", "1", "--preview", who="alice")

    assert tried.exit_code == 0, tried.stderr
    assert "no snapshot" in tried.stderr or "blocked by quota" in tried.stdout
    assert "--ceiling" not in berth("quota", "show", "perception", who="alice").stdout
    assert Quota.objects.get(team__slug="perception").ceiling_milli is None


def test_limits_of_a_quota_are_set_shown_and_taken_away(berth: Any, world: World) -> None:
    done = berth(
        "quota",
        "set",
        "perception",
        "--run-hours",
        "36",
        "--month-hours",
        "500",
        "--memory",
        "160",
        who="alice",
    )

    assert done.exit_code == 0, done.stderr
    row = Quota.objects.get(team__slug="perception")
    limits = (row.most_duration_s, row.gpu_seconds_a_month, row.most_memory_mib)
    assert limits == (36 * 3600, 500 * 3600, 160 * 1024)
    shown = berth("quota", "show", "perception", who="bob").stdout
    assert "1 d 12 h" in shown
    assert "0 of 500 this month" in shown
    assert "0 of 160 GiB held" in shown
    gone = ("--run-hours", "0", "--month-hours", "0", "--memory", "0")
    berth("quota", "set", "perception", *gone, who="alice")
    row.refresh_from_db()
    assert (row.most_duration_s, row.gpu_seconds_a_month, row.most_memory_mib) == (None, None, None)
