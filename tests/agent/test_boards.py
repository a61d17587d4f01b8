from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nodeagent.protocol.boards import _table, all_boards, board, device_facts
from nodeagent.simulation.devices.driver import SimulatedDriver


@pytest.mark.parametrize(
    ("name", "step"),
    [("mlu370-x8", 1), ("a30-24gb", 2), ("a100-80gb", 3), ("h100-80gb", 4), ("mi300x", 5), ("b200-180gb", 6)],
)
def test_a_class_is_a_step_of_the_16_bit_rate(name: str, step: int) -> None:
    assert board(name).compute_class == step


def test_a_board_without_a_figure_has_no_class_rather_than_the_lowest() -> None:
    assert board("hygon-dcu-64gb").compute_class is None
    assert board("ascend-910b").bandwidth_gbps is None


def test_every_board_names_sources_that_the_table_lists() -> None:
    listed = set(_table()["sources"])

    for row in _table()["boards"]:
        assert row["sources"]
        assert set(row["sources"]) <= listed


def test_the_table_knows_every_vendor_of_the_fleet() -> None:
    assert {kind.vendor for kind in all_boards().values()} == {
        "nvidia",
        "amd",
        "hygon",
        "cambricon",
        "huawei",
    }


def test_a_board_whose_power_is_unknown_is_measured_without_power(tmp_path) -> None:
    driver = SimulatedDriver(device_facts("n", "mi300x", 1), tmp_path, "b")

    (sample,) = driver.metrics().devices

    assert (sample.power_w, sample.temperature_c, sample.energy_mj) == (None, None, None)
    assert sample.memory_used_mib is not None


RECORDS = sorted((Path(__file__).resolve().parents[1] / "data" / "devices").glob("*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_table_says_what_a_device_was_read_to_say(path: Path) -> None:
    card = json.loads(path.read_text())["card"]
    (row,) = (row for row in _table()["boards"] if card["name"] in row["product_names"])

    assert card["memory_mib"] == row["memory_mib"]
    assert card["pci_device_id"] in row["pci_device_ids"]
    assert (card["sm_count"], card["grid"]) == (row["sm_total"], row["memory_slices"])
    told = {row["name"]: row for row in row["profiles"]}
    assert {size["name"].removeprefix("MIG ") for size in card["profiles"]} == set(told)
    for size in card["profiles"]:
        assert _facts(told[size["name"].removeprefix("MIG ")], size["memorySizeMB"]) == {
            "enum": size["enum"],
            "id": size["id"],
            "most": size["instanceCount"],
            "sms": size["multiprocessorCount"],
            "engines": size["copyEngineCount"],
            "has_memory": True,
            "places": size["placements"],
        }


def _facts(row: dict[str, Any], memory_mib: int) -> dict[str, Any]:
    """Return what the table says of a size, in the words of a record."""
    return {
        "enum": row["nvml_enum"],
        "id": row["profile_id"],
        "most": row["max_instances"],
        "sms": row["sm_count"],
        "engines": row["copy_engines"],
        "has_memory": memory_mib in (row["memory_mib"], *row["memory_mib_other_drivers"]),
        "places": [[place["start"], place["size"]] for place in row["placements"]],
    }
