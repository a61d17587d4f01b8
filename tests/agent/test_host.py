from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.cli import UsageError, host_facts, parser
from nodeagent.host.facts import HostFacts, cpu_milli, memory_mib


def test_memory_is_read_as_the_kernel_counts_it(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemFree:  5 kB\nMemTotal:       2097152 kB\n", encoding="ascii")

    assert memory_mib(meminfo) == 2048


@pytest.mark.parametrize("text", ["", "MemTotal: many kB\n", "MemTotal: 5 pages\n"])
def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    (tmp_path / "meminfo").write_text(text, encoding="ascii")

    assert memory_mib(tmp_path / "meminfo") is None
    assert memory_mib(tmp_path / "nothing") is None


def test_cores_are_counted_in_thousandths() -> None:
    cores = cpu_milli()

    assert cores is not None
    assert cores >= 1000
    assert cores % 1000 == 0


def test_a_simulated_host_is_unknown_unless_options_say_what_it_has() -> None:
    plain = parser({}).parse_args(["--driver", "simulated"])
    told = parser({"BERTH_RACK": "A1"}).parse_args(
        ["--driver", "simulated", "--cpu-cores", "96.5", "--memory-gib", "2"]
    )

    assert host_facts(plain) == HostFacts()
    assert host_facts(told) == HostFacts(96_500, 2048, "", "A1")


def test_a_real_host_offers_what_it_has_or_less_where_an_option_says_so() -> None:
    found = host_facts(parser({}).parse_args(["--driver", "nvml", "--memory-gib", "1"]))

    assert found.cpu_milli == cpu_milli()
    assert found.memory_mib == 1024


@pytest.mark.parametrize("words", [["--cpu-cores", "-1"], ["--memory-gib", "nan"], ["--rack", "x" * 61]])
def test_sizes_that_make_no_sense_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        host_facts(parser({}).parse_args(words))


def test_signals_that_the_agent_was_told_to_ignore_are_heard_by_what_it_starts() -> None:
    program = """
import os, signal, subprocess
from nodeagent.host.signals import keep_ignored_signals
keep_ignored_signals()
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    os.kill(os.getpid(), number)
subprocess.run(["grep", "SigIgn", "/proc/self/status"])
"""
    in_background = ["sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh", sys.executable, "-c", program]

    said = subprocess.run(in_background, capture_output=True, text=True, check=True).stdout

    assert int(said.split()[1], 16) & 0b111 == 0
