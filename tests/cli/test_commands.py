from __future__ import annotations

import json
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from portal.billing.metering import meter_all
from portal.billing.periods import month_bounds
from portal.catalog.models import Rate
from portal.cli import output, requests, show
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import LeaseState
from tests.portal.builders import H100, World


def test_request_prints_only_the_id_on_stdout(world: World, berth: Any) -> None:
    done = berth("request", "h100-1g-10gb", "--hours", "1.5", "--name", "try")

    made = LeaseRequest.objects.get()
    assert done.exit_code == 0
    assert done.stdout == f"{made.uid}\n"
    assert "0.68 EUR for 1 h 30 min" in done.stderr
    assert (made.duration_s, made.name) == (5400, "try")


def test_request_waits_until_active_and_prints_how_to_connect(
    world: World, berth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agent_is_quick(_seconds: float) -> None:
        world.turn()
        world.ready(*Lease.objects.filter(state=LeaseState.PREPARING))

    monkeypatch.setattr(requests.time, "sleep", agent_is_quick)

    done = berth("request", "h100-1g-10gb", "--minutes", "10", "--wait")

    assert done.exit_code == 0, done.stderr
    assert "export CUDA_VISIBLE_DEVICES=MIG-" in done.stdout


def test_request_that_still_waits_ends_with_4(
    world: World, berth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(requests.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(requests.time, "sleep", lambda _s: None)

    done = berth("request", "h100", "--seconds", "60", "--wait", "--timeout", "3", "--json")

    assert done.exit_code == 4
    assert json.loads(done.stdout)["state"] == "queued"


def test_refusal_says_why_and_what_to_do_next(world: World, berth: Any) -> None:
    done = berth("request", "no-such", "--hours", "1")

    assert done.exit_code == 1
    assert done.stdout == ""
    assert "flavor: There is no such flavor" in done.stderr
    assert "Correct the marked fields" in done.stderr


@pytest.mark.parametrize(
    "words",
    [("request", "h100"), ("request",), ("nonsense",), ("extend", "lse-1"), ("request", "h100", "--hours", "x"),
     ("list", "--limit", "0"), ("request", "h100", "--hours", "1", "--count", "0")],
)  # fmt: skip
def test_wrong_usage_ends_with_2(words: tuple[str, ...], berth: Any) -> None:
    assert berth(*words).exit_code == 2


def test_portal_that_is_away_ends_with_3(berth: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from portal.cli import client

    monkeypatch.setattr(client, "transport", None)
    monkeypatch.setenv("BERTH_URL", "http://127.0.0.1:1")

    done = berth("list")

    assert done.exit_code == 3
    assert "Cannot reach http://127.0.0.1:1" in done.stderr


def test_list_shows_waiting_and_running_with_reason_and_cost(world: World, berth: Any) -> None:
    lease = world.active("bob")
    for _ in range(2):
        world.submit("bob", "h100", count=4)
    world.turn()

    text = berth("list").stdout
    data = json.loads(berth("list", "--mine", "--json").stdout)

    assert lease.uid in text
    assert "of Vision are free" in " ".join(text.split())
    assert [row["id"] for row in data["leases"]][-1] == lease.uid
    assert berth("list", who="charlie").stdout == ""


def test_show_tells_how_to_connect_or_why_it_waits(world: World, berth: Any) -> None:
    lease, waiting = world.active("bob"), world.submit("bob")

    shown = berth("show", lease.uid)
    queued = berth("show", waiting.uid)
    foreign = berth("show", lease.uid, who="charlie")

    assert "export CUDA_VISIBLE_DEVICES=MIG-" in shown.stdout
    assert "place in queue" in queued.stdout
    assert (foreign.exit_code, foreign.stdout) == (1, "")


def test_release_extend_and_withdraw(world: World, berth: Any) -> None:
    lease, waiting = world.active("bob"), world.submit("bob")

    assert berth("extend", lease.uid, "--minutes", "5").exit_code == 0
    assert json.loads(berth("release", lease.uid, "--json").stdout)[0]["state"] == "ending"
    assert "withdrawn" in berth("withdraw", waiting.uid).stderr
    assert berth("release", "../me").exit_code == 1


def test_quote_says_price_and_unknown_start(world: World, berth: Any) -> None:
    done = berth("quote", "h100", "--hours", "2", "--count", "2")

    assert done.exit_code == 0
    assert "14.40 EUR" in done.stdout


def test_invoice_as_table_json_and_csv(world: World, berth: Any) -> None:
    world.ended("bob", seconds=3600)
    meter_all(now=world.now)
    lease = Lease.objects.get()
    month = f"{lease.activated_at:%Y-%m}"

    assert "draft" in berth("invoice", "--month", month).stdout
    assert json.loads(berth("invoice", "--month", month, "--json").stdout)["team"] == "perception"
    assert berth("invoice", "--month", month, "--csv").stdout.startswith("\ufeffmonth,")
    assert berth("invoice", who="finance").exit_code == 2


def test_finance_tries_a_price_on_last_month(world: World, berth: Any) -> None:
    tried = ("price", "set", H100, "100", "--preview")
    assert "Nobody used" in berth(*tried, who="finance").stderr
    world.ended("bob", "h100", seconds=3600, at=month_bounds(world.now)[0] - timedelta(days=2))
    meter_all(now=world.now)
    before = Rate.objects.count()

    found = berth(*tried, who="finance").stdout

    assert "perception" in found
    assert "100.00" in found
    assert json.loads(berth(*tried, "--json", who="finance").stdout)["then"]["amount"] == "100.00"
    assert berth(*tried, who="bob").exit_code != 0
    assert Rate.objects.count() == before


@pytest.mark.parametrize("name", ["flavors", "teams", "nodes", "me"])
def test_every_list_is_also_json(name: str, world: World, berth: Any) -> None:
    assert json.loads(berth(name, "--json").stdout)
    assert berth(name).exit_code == 0


def test_a_name_cannot_steer_the_terminal(world: World, berth: Any) -> None:
    bob = world.user("bob")
    type(bob).objects.filter(pk=bob.pk).update(username="b\x1b[31mob\u202e")
    world.submit("bob")

    assert "\x1b" not in berth("list").stdout
    assert "\u202e" not in berth("list").stdout


HOSTILE = {"CUDA_VISIBLE_DEVICES": "x; touch PWNED $(touch PWNED)", "LD_PRELOAD": "/tmp/x", "A=`id`;B": "x"}


def test_what_a_node_says_cannot_run_in_the_holders_shell(world: World, berth: Any, tmp_path: Path) -> None:
    """The row is as an older portal stored it: the command line looks by itself."""
    lease = world.active("bob")
    lease.placements.update(access={"env": HOSTILE})

    shown = berth("show", lease.uid)

    lines = "".join(line for line in shown.stdout.splitlines(keepends=True) if line.startswith("export"))
    script = 'eval "$1"; printf %s "$CUDA_VISIBLE_DEVICES,$LD_PRELOAD"'
    said = subprocess.run(
        ["sh", "-c", script, "sh", lines], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout == f"{HOSTILE['CUDA_VISIBLE_DEVICES']},"
    assert list(tmp_path.glob("PWNED")) == []


def test_a_portal_that_tells_nonsense_is_not_believed_either(capsys: pytest.CaptureFixture[str]) -> None:
    slots = [
        {"environment": HOSTILE},
        {"environment": {"CUDA_VISIBLE_DEVICES": "MIG-2"}},
        {"environment": None},
    ]

    env = show._environment({"slots": slots, "environment": {"BERTH_TOKEN": "x", "BERTH_NODES": "a,b"}})
    output.out_json({"a": "\x1b[2J\x9b2J\u202e"})
    output.out_text("a\x1b[2J\r\nb\x9b\n")

    assert env == {
        "CUDA_VISIBLE_DEVICES": "x; touch PWNED $(touch PWNED),MIG-2",
        "BERTH_NODES": "a,b",
    }
    out = capsys.readouterr().out
    assert out == '{\n  "a": "\\u001b[2J\\u009b2J\\u202e"\n}\na [2J\r\nb \n'


def test_several_devices_are_one_variable(world: World, berth: Any) -> None:
    lease = world.active("bob", count=2)
    names = ",".join(lease.placements.values_list("partition_uuid", flat=True))

    shown = berth("show", lease.uid)
    told = json.loads(berth("show", lease.uid, "--json").stdout)

    lines = [line for line in shown.stdout.splitlines() if line.startswith("export")]
    assert lines == [f"export CUDA_VISIBLE_DEVICES={names}"]
    assert told["access"]["environment"] == {"CUDA_VISIBLE_DEVICES": names}
