from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from scheduler.replay.__main__ import main

SAMPLE = Path(__file__).parent.parent / "data" / "openb"
TRACES = Path(os.environ.get("TRACES", "traces"))
needs_traces = pytest.mark.skipif(
    not (TRACES / "openb_nodes_gpu.csv").is_file(), reason="TRACES names no folder with the full traces"
)


def replay(capsys: pytest.CaptureFixture[str], folder: Path = SAMPLE, **options: Any) -> dict[str, Any]:
    files = {name: folder / f"{name}{'.txt' if name == 'order' else '.csv'}" for name in FILES}
    assert main(arguments({**files, **options})) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


FILES = ("nodes", "pods", "order", "rank")


def arguments(options: dict[str, Any]) -> list[str]:
    words = ["openb", "--json"]
    for name, value in options.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def test_every_request_is_placed_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    found = replay(capsys, policy="fgd", knows=True)

    assert found["placed"] + found["refused"] == 243
    assert found["allocated_milli"] == 115_330
    assert found["policy"] == "fgd"
    assert found["decisions_per_second"] > 0
    assert found["peak_rss_mb"] > 0


def test_our_rule_beats_every_published_one_on_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    ours = replay(capsys, knows=True)["allocated_milli"]

    others = ("fgd", "best_fit", "dot_product", "gpu_packing", "random", "spread", "binpack")
    assert all(replay(capsys, policy=name, knows=True)["allocated_milli"] < ours for name in others)


def test_default_is_another_name_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        replay(capsys, policy="default")["allocated_milli"] == replay(capsys, policy="prr")["allocated_milli"]
    )


def test_twice_the_cluster_places_at_least_as_large_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = replay(capsys, policy="binpack"), replay(capsys, policy="binpack", scale=2)

    assert two["gpus"] == 2 * one["gpus"]
    assert two["placed"] + two["refused"] == 2 * 243
    assert two["allocated_percent"] == pytest.approx(one["allocated_percent"], abs=5)


def test_with_departures_more_than_the_supply_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    found = replay(capsys, policy="best_fit", departures=True)

    assert found["offered_percent"] == pytest.approx(130, abs=0.1)
    assert 50 < found["served_percent"] <= 100
    assert found["placed"] + found["refused"] == 2430


def test_what_a_new_installation_learns_is_worth_nearly_as_much_as_knowing_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    learning, knowing, published = (
        replay(capsys),
        replay(capsys, knows=True),
        replay(capsys, policy="fgd", knows=True),
    )

    assert learning["demand_versions"] > 1
    assert knowing["demand_versions"] == 1
    assert published["allocated_milli"] < learning["allocated_milli"] <= knowing["allocated_milli"]


def test_several_arrivals_of_one_turn_are_all_decided(capsys: pytest.CaptureFixture[str]) -> None:
    found = replay(capsys, together=20)

    assert found["placed"] + found["refused"] == 243
    assert found["allocated_percent"] > 90


@pytest.mark.parametrize("options", [{"scale": 0}, {"together": 0}, {"gap": 0}])
def test_rules_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    files = {name: SAMPLE / f"{name}{'.txt' if name == 'order' else '.csv'}" for name in FILES}

    assert main(arguments({**files, **options})) == 1

    assert capsys.readouterr().err.startswith("--")


def test_placements_can_be_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "placements.csv"

    found = replay(capsys, policy="binpack", placements=out)

    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 243
    assert sum(1 for row in rows if row["node"]) == found["placed"]


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("nodes.csv", "cpu_milli", "cpu", "nodes.csv, line 1: no column cpu_milli"),
        ("nodes.csv", ",8,", ",eight,", "column gpu: the value is 'eight', not a number"),
        ("pods.csv", ",1000,", ",-5,", "column gpu_milli: the value is -5, outside of 0"),
        ("order.txt", "openb-pod", "other-pod", "order.txt, line 1, column 1: 'other-pod"),
        ("rank.csv", "sn,rank", "sn;rank", "rank.csv, line 1: no column sn, rank"),
        ("pods.csv", "openb-pod-0001", '"openb', "not as many cells"),
    ],
)
def test_a_malformed_file_is_named_with_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, says: str
) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    text = (tmp_path / file).read_text()
    if old not in text:
        old = text.splitlines()[1].split(",")[0]
    (tmp_path / file).write_text(text.replace(old, new, 1))
    files = {name: tmp_path / f"{name}{'.txt' if name == 'order' else '.csv'}" for name in FILES}

    assert main(arguments(files)) == 1

    told = capsys.readouterr()
    assert says in told.err
    assert told.out == ""


def test_an_unknown_policy_is_told_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: SAMPLE / f"{name}{'.txt' if name == 'order' else '.csv'}" for name in FILES}

    assert main(arguments({**files, "policy": "magic"})) == 1

    assert "best_fit" in capsys.readouterr().err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    files = dict.fromkeys(FILES, SAMPLE / "absent.csv")

    assert main(arguments(files)) == 1

    assert "absent.csv: cannot be read" in capsys.readouterr().err


@needs_traces
def test_fgd_places_pod_by_pod_as_the_reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "placements.csv"
    options = full("default", 42)

    assert main(arguments({**options, "policy": "fgd", "knows": True, "placements": out})) == 0

    assert json.loads(capsys.readouterr().out)["allocated_milli"] == 5_919_410
    with gzip.open(TRACES / "openb_reference" / "default_seed42_fgd.csv.gz", "rt") as lines:
        wanted = [row["node"] for row in csv.DictReader(lines)]
    assert [row["node"] for row in csv.DictReader(out.open())] == wanted


@needs_traces
def test_ours_reaches_its_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(full("default", 43))) == 0

    assert json.loads(capsys.readouterr().out)["allocated_percent_at_130"] >= 96.3


def full(workload: str, seed: int) -> dict[str, Any]:
    return {
        "nodes": TRACES / "openb_nodes_gpu.csv",
        "pods": TRACES / f"openb_pods_{workload}.csv.gz",
        "order": TRACES / "openb_order" / f"{workload}_seed{seed}.txt.gz",
        "rank": TRACES / "openb_node_rank" / f"{workload}_seed{seed}.csv.gz",
    }
