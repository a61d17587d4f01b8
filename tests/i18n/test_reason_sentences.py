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


AT = "2022-12-01T13:00:00+00:00"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            {
                "code": "cohort_exhausted",
                "name": "Vision",
                "used_milli": 3000,
                "wanted_milli": 1000,
                "guaranteed_milli": 4000,
                "short_milli": 500,
            },
            "Others have borrowed what Vision is guaranteed: it uses 3 of 4 reference GPUs, and 0.5 of what it now "
            "needs are lent out. It is taken back, or comes free when a lease of theirs ends.",
        ),
        (
            {
                "code": "cohort_exhausted",
                "name": "Vision",
                "used_milli": 4000,
                "wanted_milli": 1000,
                "guaranteed_milli": 4000,
                "lendable_milli": 250,
                "short_milli": 750,
            },
            "Vision uses 4 reference GPUs of a guarantee of 4, and other teams lend 0.25 now: 0.75 are missing. It "
            "starts when one of them needs less.",
        ),
        (
            {"code": "gang_incomplete", "nodes": 4, "nodes_fit": 3, "wanted": 8, "next_end": AT},
            "Only 3 of 4 nodes have 8 free each now, and they start together or not at all. The first one in "
            "the way ends by 1 Dec 2022, 13:00.",
        ),
        (
            {"code": "gang_incomplete", "nodes": 0, "fits": 5, "wanted": 8, "next_end": "soon"},
            "Only 5 of 8 are free on all nodes now, and they start together or not at all.",
        ),
        (
            {"code": "maintenance_ahead", "starts_at": AT, "nodes": ["gpu-01"], "longest_s": 5400},
            "There is room now, but maintenance begins at 1 Dec 2022, 13:00, before this would end: "
            "gpu-01. Up to 1 h 30 min would fit now.",
        ),
        (
            {"code": "booked_ahead", "starts_at": AT, "longest_s": 30},
            "There is room now, but it is booked from 1 Dec 2022, 13:00 on, before this would end.",
        ),
        (
            {"code": "reserved_for_waiting", "starts_at": AT, "position": 3},
            "There is room now, but request number 3, which waits longer, starts there at 1 Dec 2022, 13:00.",
        ),
        (
            {"code": "booking_taken", "starts_at": AT, "nearest": [AT]},
            "The time from 1 Dec 2022, 13:00 on is taken. Free near it: 1 Dec 2022, 13:00.",
        ),
        (
            {"code": "booking_above_quota", "starts_at": AT, "nearest": []},
            "At 1 Dec 2022, 13:00 the team would be above its quota.",
        ),
        (
            {"code": "above_quota", "name": "Vision", "ceiling_milli": 2500},
            "This is more than the quota of Vision can ever hold (2.5 reference GPUs).",
        ),
        (
            {
                "code": "larger_than_fleet",
                "wanted": {"nodes": 3, "share_milli": 24000, "memory_mib": 81920},
                "nearest": {"nodes": 1, "host_memory_mib": 524288},
            },
            "Even when nothing runs, all nodes together cannot hold 3 nodes, 24 of a GPU, 80 GiB of GPU "
            "memory at once, only 1 node, 512 GiB of main memory.",
        ),
        (
            {
                "code": "node_resources_short",
                "node": "gpu-02",
                "host_memory_mib": 65536,
                "free_memory_mib": 1536,
            },
            "gpu-02 has the GPUs, but is short beside them: 1.5 of 64 GiB of main memory are free.",
        ),
        ({"code": "malformed", "field": "count"}, "The figure for count makes no sense."),
    ],
    ids=lambda value: value["code"] if isinstance(value, dict) else "",
)
def test_a_reason_says_its_figures_and_leaves_out_what_nobody_knows(
    reason: dict[str, object], said: str
) -> None:
    assert sentence(reason) == said
