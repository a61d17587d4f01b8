"""Device nodes of a lease: systemd would leave out in silence what is not there, so it is made or refused."""

from __future__ import annotations

import pytest

from nodeagent.host.shell import Done
from nodeagent.runtimes import nodes
from nodeagent.runtimes.base import RuntimeRefusedError
from tests.agent.systemd_bench import GRANT, UNIT

CAPABILITY = "/dev/nvidia-caps/nvidia-cap12"
MINORS = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"


def with_minors(host):
    def read(path: str) -> str:
        return MINORS if path == "/proc/driver/nvidia-caps/mig-minors" else host.systemd.read(path)

    return host.agent(read=read)


def test_a_missing_device_node_is_refused_since_systemd_would_leave_it_out_in_silence(host):
    host.systemd.missing_nodes.add("/dev/nvidia-caps/nvidia-cap12")

    with pytest.raises(RuntimeRefusedError, match=r"nvidia-cap12 does not exist") as no:
        host.agent().open(GRANT)
    assert (no.value.word, no.value.is_passing) == ("no_node", True)
    assert host.systemd.units == {}


def test_a_missing_capability_node_is_made_by_the_only_option_that_makes_one(host):
    host.systemd.missing_nodes.add(CAPABILITY)
    said = []

    def modprobe(argv, stdin, env):
        said.append(list(argv[1:]))
        host.systemd.missing_nodes.discard(CAPABILITY)
        return Done(0)

    host.shell.programs["nvidia-modprobe"] = modprobe

    with_minors(host).open(GRANT)

    assert said == [["-f", "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"]]
    assert f"{CAPABILITY} rw" in host.systemd.units[UNIT].properties["DeviceAllow"]


def test_a_node_that_cannot_be_made_is_refused_with_the_words_that_would_make_it(host):
    host.systemd.missing_nodes.update((CAPABILITY, "/dev/nvidia0"))
    host.shell.programs["nvidia-modprobe"] = lambda argv, stdin, env: Done(1, err="not permitted")

    with pytest.raises(RuntimeRefusedError) as no:
        with_minors(host).open(GRANT)

    assert (
        "nvidia-modprobe -c 0; nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"
        in str(no.value)
    )
    assert host.systemd.units == {}


def test_a_plan_makes_no_node(host):
    host.systemd.missing_nodes.add(CAPABILITY)
    host.shell.programs["nvidia-modprobe"] = lambda argv, stdin, env: pytest.fail("a plan changes nothing")

    refusal = with_minors(host).would_refuse(GRANT)

    assert refusal is not None
    assert refusal.word == "no_node"


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("/dev/nvidia3", ["-c", "3"]),
        ("/dev/nvidiactl", ["-c", "255"]),
        ("/dev/nvidia-uvm", ["-u", "-c", "0"]),
        ("/dev/nvidia-caps/nvidia-cap13", ["-f", "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access"]),
        ("/dev/nvidia-caps/nvidia-cap1", []),
        ("/dev/nvidia-caps/nvidia-cap99", []),
        ("/dev/kfd", []),
    ],
)
def test_each_node_has_its_own_words_and_what_nobody_is_given_has_none(node, words):
    assert nodes.words_for(node, lambda path: MINORS)[1:] == words
