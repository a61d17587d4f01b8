from __future__ import annotations

import json
import re
from pathlib import Path

from portal.telemetry import consumers, hub
from portal.telemetry.hub import _SENTENCES

PAGE = (Path(__file__).parents[2] / "docs" / "live.md").read_text()


def test_the_page_lists_every_refusal_and_every_close_code() -> None:
    refusals = set(re.findall(r"^\| `(\w+)` \|", PAGE.split("## Refusals")[1].split("## Close")[0], re.M))
    closes = {int(code) for code in re.findall(r"^\| (\d{4}) \|", PAGE, re.M)}

    assert refusals == set(_SENTENCES)
    assert closes == {
        consumers.NOT_TEXT,
        consumers.TOO_BIG,
        consumers.SLOW_DOWN,
        consumers.UNKNOWN_PATH,
        hub.SIGN_IN,
        hub.NOT_ALLOWED,
        hub.LATER,
        hub.RESTART,
    }


def test_the_messages_on_the_page_are_json() -> None:
    shown = re.findall(r"```json\n(.*?)```", PAGE, re.S)

    assert [json.loads(text)["type"] for text in shown] == ["frame", "snapshot", "event"]


def test_the_page_names_the_limits_of_the_code() -> None:
    assert (
        f"at most {consumers.MAX_TEXT_BYTES // 1024} KiB each and {consumers.MESSAGES_PER_S} a second" in PAGE
    )
    assert f"At most {hub.MAX_TOPICS} topics" in PAGE
