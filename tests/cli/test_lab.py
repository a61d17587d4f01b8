"""``berth lab``: a run is started, read, asked about a request, given out as a trace, stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from portal.lab.services import begin_next
from scheduler import lab
from tests.cli.conftest import Berth
from tests.portal.builders import World
from tests.portal.test_lab import TRACE, draft


@pytest.mark.deep
def test_a_trace_is_tried_and_read_side_by_side(world: World, berth: Berth, tmp_path: Path) -> None:
    draft(world)
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)

    started = berth(
        "lab",
        "run",
        "0",
        "1",
        "--trace",
        str(file),
        "--nodes",
        "1",
        "--demand",
        "1.5",
        "--team",
        "team1=1",
        who="operator",
    )
    assert started.exit_code == 0, started.output
    uid = started.stdout.strip()
    begun = begin_next(now=world.now)
    assert begun is not None
    lab.carry_out(uid, begun.attempts)

    assert "done" in berth("lab", "list", who="operator").stdout
    shown = berth("lab", "show", uid, who="operator").stdout
    assert "P99.9" in shown
    assert "BY P90" in shown
    assert "team2" in shown
    found = json.loads(berth("lab", "show", uid, "--json", who="operator").stdout)
    assert found["what_if"] == {"demand": 1.5, "nodes": {}, "teams": {"team1": 1}}
    assert len(berth("lab", "why", uid, "#40", "--json", who="operator").stdout.splitlines()) > 1
    assert berth("lab", "trace", uid, who="operator").stdout.startswith("seq,submit_s")
    assert berth("lab", "stop", uid, who="operator").exit_code == 1
    assert berth("lab", "list", who="bob").exit_code == 1


def test_what_is_written_wrong_is_said(world: World, berth: Berth) -> None:
    draft(world)

    assert berth("lab", "run", "0", "1", "--more", "gpu-01", who="operator").exit_code == 2
    assert berth("lab", "run", "0", "1", "--trace", "/nowhere.csv", who="operator").exit_code == 2
    few = berth("lab", "run", "0", "1", "--days", "3", who="operator")
    assert few.exit_code == 1
    assert "at least 50" in few.output
