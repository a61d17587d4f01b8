from __future__ import annotations

import json

import pytest

from nodeagent import cli
from nodeagent.fleet import DEMO, SpecError, build, demo_spec, read_spec
from nodeagent.link import AddressError, address_of

HERE = ["--portal", "ws://127.0.0.1:9", "--node", "gpu-01"]
SIMULATED = [*HERE, "--state", "{}", "--driver", "simulated"]
L40S = [*SIMULATED, "--board", "l40s"]


@pytest.mark.parametrize(
    ("portal", "url"),
    [
        ("ws://127.0.0.1:8000", "ws://127.0.0.1:8000/agent/v1"),
        ("http://portal:8000/", "ws://portal:8000/agent/v1"),
        ("https://berth.example/sub", "wss://berth.example/sub/agent/v1"),
        ("wss://berth.example/agent/v1", "wss://berth.example/agent/v1"),
        ("ws://[::1]:8000", "ws://[::1]:8000/agent/v1"),
    ],
)
def test_portal_address_becomes_the_agent_socket(portal, url):
    assert address_of(portal).url == url


@pytest.mark.parametrize(
    "portal", ["", "portal:8000", "ftp://x", "ws://", "ws://x:99999", "ws://x:y", "ws://u@x", "ws://x?a"]
)
def test_other_addresses_are_refused_with_an_example(portal):
    with pytest.raises(AddressError, match="ws://portal:8000"):
        address_of(portal)


def test_local_portals_are_never_asked_for_through_a_proxy():
    assert address_of("ws://127.0.0.1:8000").is_local
    assert not address_of("wss://berth.example").is_local


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        ([], cli.USAGE, "--portal"),
        (["--portal", "nonsense", "--state", "{}"], cli.USAGE, "not the address of a portal"),
        ([*HERE], cli.USAGE, "--state"),
        ([*HERE, "--node", "no such name", "--state", "{}"], cli.USAGE, "not a node name"),
        ([*SIMULATED], cli.USAGE, "--board"),
        ([*SIMULATED, "--board", "gtx"], cli.USAGE, "known: a100-40gb"),
        ([*L40S, "--modes", "mig"], cli.USAGE, "not mig"),
        ([*L40S, "--count", "0"], cli.USAGE, "'count'"),
        ([*L40S, "--latency", "x"], cli.USAGE, "create=0.5"),
        ([*L40S, "--health", "x"], cli.USAGE, "INDEX:CODE"),
        ([*L40S, "--state", "/proc/nowhere"], cli.STATE, "--state"),
    ],
)  # fmt: skip
def test_wrong_options_end_with_a_code_and_a_sentence(options, code, sentence, tmp_path, capsys):
    options = [str(tmp_path) if option == "{}" else option for option in options]

    assert cli.main(options, {}) == code
    assert sentence in capsys.readouterr().err


def test_options_come_from_the_environment_too(tmp_path, capsys):
    environ = {
        "BERTH_PORTAL_URL": "ws://127.0.0.1:9",
        "BERTH_NODE": "gpu-01",
        "BERTH_STATE_DIR": str(tmp_path),
    }

    assert cli.main(["--driver", "simulated"], environ) == cli.USAGE
    assert "--board" in capsys.readouterr().err


def test_missing_nvidia_driver_is_said_plainly(tmp_path, capsys, monkeypatch):
    from nodeagent.drivers import registry

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(registry, "import_module", missing)

    assert cli.main([*HERE, "--state", str(tmp_path), "--driver", "auto"], {}) == cli.NO_DRIVER
    assert "--driver simulated" in capsys.readouterr().err


@pytest.mark.parametrize("node", DEMO)
def test_demo_fleet_has_four_nodes_of_eight_devices(node):
    spec = build(node, demo_spec(node))

    assert len(spec.devices) == 8


def test_described_node_has_its_boards_faults_and_health(tmp_path):
    path = tmp_path / "node.json"
    path.write_text(json.dumps({
        "boards": [{"board": "h100-80gb", "count": 2, "modes": ["mig"]}, {"board": "l40s"}],
        "latency_s": {"create": 1.5},
        "health": [{"index": 2, "code": "63", "severity": "warning", "detail": "row remap"}],
    }))  # fmt: skip

    spec = build("gpu-09", read_spec(path), seed=3)

    assert [(fact.model, fact.index) for fact in spec.devices] == [
        ("h100-80gb", 0),
        ("h100-80gb", 1),
        ("l40s-48gb", 2),
    ]
    assert spec.faults.latency_s == {"create": 1.5}
    assert spec.faults.health[0].device == spec.devices[2].uuid


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"boards": []},
        {"boards": ["h100-80gb"]},
        {"boards": [{"board": "h100-80gb", "count": True}]},
        {"boards": [{"board": "h100-80gb", "modes": "mig"}]},
        {"boards": [{"board": "gh200-144gb"}]},
        {"boards": [{"board": "l40s"}], "latency_s": {"create": "slow"}},
        {"boards": [{"board": "l40s"}], "fault_rate": 2},
        {"boards": [{"board": "l40s"}], "health": [{"index": 9, "code": "x", "severity": "info"}]},
        {"boards": [{"board": "l40s"}], "health": [{"index": 0, "code": "x", "severity": "terrible"}]},
        {"boards": [{"board": "l40s"}], "colour": "blue"},
    ],
)
def test_descriptions_that_make_no_sense_are_refused(spec):
    with pytest.raises(SpecError):
        build("gpu-09", spec)
