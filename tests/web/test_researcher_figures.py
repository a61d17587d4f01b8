from __future__ import annotations

from decimal import Decimal

import pytest

from portal.common.moments import span
from portal.web.figures import duration_text, gpus, memory, money, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6 h", 21_600),
        ("6h", 21_600),
        ("6", 21_600),
        ("1.5", 5_400),
        ("1,5 h", 5_400),
        ("90 min", 5_400),
        ("1 h 30 min", 5_400),
        ("2 d", 172_800),
        ("45 s", 45),
        ("6 小时", 21_600),
        ("2天", 172_800),
        ("0", 0),
        ("", None),
        ("soon", None),
        ("-1 h", None),
        ("1 h x", None),
        ("h", None),
        ("1e9", None),
        ("9" * 41, None),
    ],
)
def test_a_length_of_time_is_read_as_people_write_it(text: str, seconds: int | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("seconds", [1, 59, 60, 90, 3600, 5400, 86_400, 90_061])
def test_a_written_length_is_read_back_exactly(seconds: int) -> None:
    assert parse_duration(duration_text(seconds)) == seconds


def test_figures_read_well_and_unknown_stays_unknown() -> None:
    assert (gpus(2750), gpus(1000), gpus(0), gpus(None)) == ("2.75", "1", "0", None)
    assert (memory(81_559), memory(20_096), memory(40_960)) == ("79.6 GiB", "19.6 GiB", "40 GiB")
    assert (memory(512), memory(None)) == ("512 MiB", None)
    assert (span(0), span(59), span(5_400), span(90_061), span(None)) == (
        "0 s",
        "59 s",
        "1 h 30 min",
        "1 d 1 h",
        None,
    )
    assert (money(1_180_000), money(None)) == (Decimal("1.18"), None)
