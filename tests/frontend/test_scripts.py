"""The pure parts of the page's own scripts, run by Node where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from portal.cli.formatting import span

SCRIPTS = Path(__file__).resolve().parents[2] / "static" / "js"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no node on PATH: the scripts' pure parts are not run")
STUB = """
const piece = { style: {}, set hidden(v) {} };
globalThis.document = { documentElement: { lang: 'en' }, createElement: () => piece, body: { append() {} } };
globalThis.window = globalThis;
"""


def run(module: str, names: str, expression: str) -> Any:
    """The JSON value of an expression over what a module exports."""
    code = f"{STUB}const {{ {names} }} = await import({json.dumps((SCRIPTS / module).as_uri())});"
    code += f"console.log(JSON.stringify({expression}));"
    done = subprocess.run(
        [str(NODE), "--experimental-default-type=module", "--input-type=module", "-e", code],
        check=True, capture_output=True, text=True, timeout=60, env={"PATH": "", "TZ": "UTC"},
    )  # fmt: skip
    return json.loads(done.stdout)


@needs_node
def test_ring_draws_missing_seconds_as_a_gap_and_forgets_the_old():
    rows = run(
        "chart.js",
        "Ring",
        "(() => { const r = new Ring(10); r.push([100, 5, 7]); r.push([101, null, 7]); r.push([106, 0, 0]);"
        " r.push([105, 9, 9]); r.push([106, 1, 2]); r.push([111, 3, 3]); return r.rows; })()",
    )

    assert rows == [[101, None, 7], [102, None, None], [106, 1, 2], [107, None, None], [111, 3, 3]]


@needs_node
def test_numbers_keep_unknown_apart_from_zero():
    figures = "number(null), number(undefined), number(0), memory(null), memory(0), memory(20096)"

    shown = run("i18n.js", "number, memory", f"[{figures}]")

    assert shown == [None, None, "0", None, "0 MiB", "19.6 GiB"]


@needs_node
def test_lengths_read_as_the_portal_writes_them():
    seconds = [59, 3584, 3600, 93784, 90061, -5]

    shown = run("i18n.js", "span", f"{seconds}.map(span)")

    assert shown == ["59 s", "59 min 44 s", "1 h", "1 d 2 h", "1 d 1 h", "0 s"] == [span(s) for s in seconds]


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.js")), ids=lambda p: p.name)
def test_script_stays_small_and_within_the_policy(path):
    text = path.read_text("utf-8")

    assert text.count("\n") < 200
    assert "eval(" not in text
    assert "new Function" not in text
    assert 'setAttribute("style"' not in text
