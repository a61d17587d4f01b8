from __future__ import annotations

import json
from typing import Any

from tests.advice.test_leases import measure, ran
from tests.portal.builders import World


def test_advice_is_on_the_receipt_in_a_quote_and_on_its_own(world: World, berth: Any) -> None:
    lease = ran(world)
    measure(lease)
    uid = str(lease.uid)

    shown = berth("advice", "show", uid).stdout
    row = json.loads(berth("advice", "show", uid, "--json").stdout)

    assert "h100-1g-10gb" in shown
    assert (row["verdict"], row["suggested"], row["leases"], row["is_dismissed"]) == (
        "smaller", "h100-1g-10gb", 1, False,
    )  # fmt: skip
    assert row["saved"]["currency"] == "EUR"
    assert "h100-1g-10gb" in berth("receipt", uid).stdout
    assert "would do" in berth("quote", "h100", "--hours", "1").stdout
    assert berth("advice", "show", uid, who="charlie").exit_code != 0

    assert "no more advice about h100" in berth("advice", "dismiss", "h100").output
    assert "would do" not in berth("quote", "h100", "--hours", "1").stdout
    assert "berth advice restore h100" in berth("advice", "show", uid).output
    assert "advice about h100 again" in berth("advice", "restore", "h100").output
    assert "would do" in berth("quote", "h100", "--hours", "1").stdout
    assert berth("advice", "dismiss", "nothing").exit_code != 0


def test_what_was_not_measured_is_said(world: World, berth: Any) -> None:
    uid = str(ran(world).uid)

    assert "Not measured: 0 of 60 minutes" in berth("advice", "show", uid).stdout
