"""Names, properties and time spans as systemd writes and reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.runtimes import unit as units
from nodeagent.runtimes.base import RuntimeRefusedError
from nodeagent.runtimes.names import end_of, harmless, key_of_end, key_of_unit, original, unit_of
from tests.agent.systemd_bench import GRANT, PEOPLE, UNIT


@given(lease=st.text(min_size=1, max_size=16), generation=st.integers(0, 2**31 - 1))
def test_every_lease_has_a_harmless_name_that_reads_back(lease, generation):
    try:
        lease.encode()
    except UnicodeEncodeError:
        return
    unit = unit_of((lease, generation))

    assert key_of_unit(unit) == (lease, generation)
    assert key_of_end(f"{end_of((lease, generation), 77)}.timer") == ((lease, generation), 77)
    assert not set(unit) & set("/*?[]\\ \n\0%@")
    assert original(harmless(lease)) == lease


@pytest.mark.parametrize(
    "name",
    ["berth-lease-a.service", "berth-lease-a-01.service", "berth-lease-_zz-1.service", "ssh.service", ""],
)
def test_names_that_are_not_ours_belong_to_nobody(name):
    assert key_of_unit(name) is None


@pytest.mark.parametrize("lease", ["", "x" * 201])
def test_names_that_would_not_fit_are_refused(lease):
    with pytest.raises(RuntimeRefusedError):
        unit_of((lease, 1))


@pytest.mark.parametrize(
    ("text", "us"),
    [("1.500000s", 1_500_000), ("150ms", 150_000), ("1min 30s", 90_000_000), ("infinity", None), ("", None)],
)
def test_time_spans_of_systemd_are_understood(text, us):
    assert units.span_us(text) == us


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed here")
def test_systemd_itself_knows_every_property_of_a_lease(tmp_path: Path):
    lines = units.properties(GRANT, PEOPLE["alice"])
    lines[0] = "User=root"  # verify looks the account up
    unit = tmp_path / UNIT
    unit.write_text("[Service]\nType=exec\nExecStart=/bin/sleep infinity\n" + "\n".join(lines) + "\n")

    said = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )

    assert (said.returncode, said.stderr) == (0, "")
