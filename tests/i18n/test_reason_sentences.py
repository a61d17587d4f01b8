from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.utils import translation

from portal.leases.reasons import sentence


@pytest.fixture(autouse=True)
def in_english() -> Iterator[None]:
    with translation.override("en"):
        yield


def test_nodes_that_are_away_are_named() -> None:
    nodes = [{"node": "gpu-01", "blocked": "offline", "devices": 8}]

    assert "gpu-01." in sentence({"code": "nodes_blocked", "nodes": nodes})


def test_a_booking_that_hangs_on_silent_nodes_names_them() -> None:
    silent = {"code": "nodes_silent", "starts_at": "2022-12-01T13:00:00+00:00", "nodes": ["gpu-01", "gpu-02"]}

    assert sentence(silent) == (
        "The nodes that could serve the time from 1 Dec 2022, 13:00 on are silent: gpu-01, gpu-02. "
        "It is booked once they are heard."
    )


def test_what_no_node_can_hold_is_said_in_units_not_in_field_names() -> None:
    said = sentence(
        {"code": "larger_than_any_node", "wanted": {"cpu_milli": 96500}, "nearest": {"cpu_milli": 64000}}
    )

    assert said == "Even an idle node cannot hold 96.5 CPU cores at once; the largest holds 64 CPU cores."


def test_a_node_short_of_cpu_says_how_much_is_free_and_nothing_of_what_nobody_knows() -> None:
    short = {
        "code": "node_resources_short", "node": "gpu-02", "cpu_milli": 16000, "free_cpu_milli": 4000,
        "host_memory_mib": 65536, "free_memory_mib": None,
    }  # fmt: skip

    assert sentence(short) == "gpu-02 has the GPUs, but is short beside them: 4 of 16 CPU cores are free."
    with translation.override("zh-hans"):
        assert sentence(short) == "gpu-02 有可用的 GPU，但其他资源不足：CPU 空闲 4 核（需要 16 核）。"


def test_a_node_that_is_woken_is_named_with_when_it_should_be_ready_if_that_is_known() -> None:
    waking = {"code": "node_waking", "nodes": ["gpu-02"], "ready_at": None}

    assert sentence(waking) == "A node that sleeps is woken for this: gpu-02."
    assert "It should be ready by" in sentence({**waking, "ready_at": "2026-03-02T12:00:40+00:00"})
