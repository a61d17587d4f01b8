"""Instants in wait reasons: in the reader's words in the sentence, ISO 8601 in the figures."""

from __future__ import annotations

import pytest
from django.utils import timezone, translation

from portal.api.representations import reason_row
from portal.leases.reasons import sentence

REASON = {"code": "fragmented", "next_end": "2022-11-21T14:05:00+00:00"}


@pytest.mark.parametrize(
    ("language", "zone", "said"),
    [
        ("en", "UTC", "ends by 21 Nov 2022, 14:05."),
        ("en", "Asia/Shanghai", "ends by 21 Nov 2022, 22:05."),
        ("zh-hans", "Asia/Shanghai", "将于 2022年11月21日 22:05 前释放。"),
    ],
)
def test_a_reason_names_the_time_as_its_reader_writes_it(language: str, zone: str, said: str) -> None:
    with translation.override(language), timezone.override(zone):
        assert sentence(REASON).endswith(said)


def test_the_api_keeps_iso_in_the_figures() -> None:
    assert reason_row(REASON)["figures"] == {"next_end": "2022-11-21T14:05:00+00:00"}
