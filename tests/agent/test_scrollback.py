"""What a terminal showed last, while it prints and once it rests."""

from __future__ import annotations

import random

from nodeagent.protocol.terminals import KEPT_BYTES
from nodeagent.streams.scrollback import PACKED_AFTER, Scrollback


def test_the_last_bytes_are_kept_however_they_come_and_whenever_it_rests():
    dice = random.Random(5)
    kept, shown = Scrollback(), b""
    for _ in range(200):
        data = dice.randbytes(dice.choice([1, 100, 5000, 40_000, KEPT_BYTES + 7]))
        kept.add(data)
        shown = (shown + data)[-KEPT_BYTES:]
        for _ in range(dice.randrange(3)):
            kept.rest()
        assert kept.text() == shown


def test_what_rests_costs_no_ring_and_what_is_typed_deflates_nothing_anew():
    kept = Scrollback()
    kept.add(b"x" * KEPT_BYTES)

    assert [kept.rest(), kept.rest(), kept.rest()] == [False, True, False]
    assert (kept._ring, len(kept._packed) < 2000) == (None, True)
    kept.add(b"ls\r\n")
    assert [kept.rest(), kept.rest()] == [False, False]
    assert PACKED_AFTER > 4
    assert kept.text().endswith(b"xls\r\n")
