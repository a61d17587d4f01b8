"""The agent's page: its examples run, its tables are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nodeagent import cli
from nodeagent.simulation import script

PAGE = Path(__file__).parents[2] / "docs" / "agent.md"


def examples() -> list[str]:
    return re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_script_on_the_page_can_be_played() -> None:
    (text,) = (one for one in examples() if '"do"' in one)

    assert [step.do for step in script.read_script(text)] == ["missing", "process", "xid"]


def test_the_page_has_every_step_of_a_script_with_all_its_fields() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+) \| (.*) \| .* \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {
        verb: set(re.findall(r"`([a-z_]+)`", fields))
        for verbs, fields in rows
        for verb in re.findall(r"\w+", verbs)
    }

    for verb, deed in script._KINDS.items():
        assert deed.needs.keys() | deed.may.keys() <= documented[verb], verb


def test_the_desired_state_on_the_page_is_one_that_can_be_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = (one for one in examples() if '"leases"' in one)
    (tmp_path / "goal.json").write_text(text)
    host = ["--driver", "simulated-nvml", "--board", "h100-80gb", "--count", "1", "--node", "gpu-01"]

    code = cli.main(
        ["apply", str(tmp_path / "goal.json"), "--dry-run", "--json", "--state", str(tmp_path), *host], {}
    )

    found = json.loads(capsys.readouterr().out)
    assert (code, [lease["phase"] for lease in found["leases"]]) == (0, ["ready"])
