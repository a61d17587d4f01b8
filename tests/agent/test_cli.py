from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent import cli
from nodeagent.commands import opening, soak
from nodeagent.commands import simulated as simulating
from nodeagent.commands.options import layouts, settle
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.link.address import AddressError, address_of
from nodeagent.link.agent import Agent
from nodeagent.link.identity import Identity
from nodeagent.simulation.spec import DEMO, SpecError, build, demo_spec, read_spec

HERE = ["--portal", "ws://127.0.0.1:9", "--node", "gpu-01"]
SIMULATED = [*HERE, "--state", "{}", "--driver", "simulated"]
L40S = [*SIMULATED, "--board", "l40s"]


@pytest.mark.parametrize(
    ("portal", "url"),
    [
        ("ws://127.0.0.1:8000", "ws://127.0.0.1:8000/agent/v1"),
        ("http://localhost:8000/", "ws://localhost:8000/agent/v1"),
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
    with pytest.raises(AddressError, match=r"wss://berth\.example"):
        address_of(portal)


@pytest.mark.parametrize("portal", ["ws://portal:8000", "http://10.0.0.7", "ws://127.0.0.1.evil.example"])
def test_a_portal_beyond_this_host_is_not_spoken_to_in_the_clear_unless_somebody_says_so(portal):
    with pytest.raises(AddressError, match="--allow-plain"):
        address_of(portal)

    assert address_of(portal, allow_plain=True).url.startswith("ws://")


def test_an_agent_does_not_start_towards_a_portal_in_the_clear(tmp_path, capsys):
    words = [*(word.format(tmp_path) for word in L40S), "--portal", "ws://portal:8000"]

    assert cli.main(words, {"BERTH_ALLOW_PLAIN": "no"}) == 2
    assert "--allow-plain" in capsys.readouterr().err
    assert cli.main(words, {"BERTH_ALLOW_PLAIN": "maybe"}) == 2
    assert "say 1 or 0" in capsys.readouterr().err


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
        ([*L40S, "--scratch", "scratch"], cli.USAGE, "--scratch is an absolute path"),
        ([*L40S, "--scratch", "/srv/../home"], cli.USAGE, "--scratch is an absolute path"),
        ([*L40S, "--scratch", "/srv/a b"], cli.USAGE, "--scratch is an absolute path"),
        ([*L40S, "--scratch", "/proc/nowhere"], cli.USAGE, "cannot use the scratch folder /proc/nowhere"),
        ([*L40S, "--scratch-limit", "much"], cli.USAGE, "--scratch-limit is a whole number of GiB"),
        ([*L40S, "--data-sets", "/nowhere"], cli.USAGE, "--data-sets /nowhere is no folder"),
        ([*HERE, "--state", "{}", "--scratch", "/home/scratch"], cli.USAGE, "hidden from the agent's unit"),
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


PLAYED = ["--node", "gpu-01", "--driver", "simulated-nvml", "--board", "h100-80gb", "--count", "1"]


def test_every_variable_is_in_the_help_and_in_the_docs(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"], {})
    said = " ".join(capsys.readouterr().out.split())
    documented = "".join(Path(f"docs/{page}.md").read_text() for page in ("agent", "slurm", "kubernetes"))

    named = set(re.findall(r"BERTH_[A-Z_]+", said))
    assert named == set(re.findall(r"`(BERTH_[A-Z_]+)`", documented)) - {"BERTH_NOTICE", "BERTH_GPU_FACTS"}
    assert {"BERTH_LAYOUT", "BERTH_ORPHANS", "BERTH_SITE", "BERTH_RACK"} <= named


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("BERTH_DRIVER", "nvlm", "BERTH_DRIVER=nvlm: use one of auto, nvml"),
        ("BERTH_RUNTIME", "docker", "BERTH_RUNTIME=docker: use one of auto, systemd, cdi, plain"),
        ("BERTH_ORPHANS", "murder", "BERTH_ORPHANS=murder: use one of report, warn, kill"),
        ("BERTH_POWER_SAVING", "maybe", "BERTH_POWER_SAVING=maybe: say 1 or 0"),
        ("BERTH_PATIENCE_S", "long", "from 0 to 3600, not long"),
        ("BERTH_OFFER", "mig,rent", "'rent' is not a mode"),
        ("BERTH_LAYOUT", "half", "'half' is no layout"),
        ("BERTH_LAYOUT", "mi300x=cpx,MI300X=spx", "named twice"),
        ("BERTH_DCGM_URL", "nonsense", "no address of a DCGM exporter"),
        ("BERTH_DCGM_URL", "http://x:y/", "no address of a DCGM exporter"),
    ],
)
@pytest.mark.parametrize("command", [["check"], ["run", *HERE]])
def test_a_setting_by_variable_is_checked_like_its_option(name, value, sentence, command, tmp_path, capsys):
    assert cli.main([*command, "--state", str(tmp_path)], {name: value}) == cli.USAGE

    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_option_wins_over_its_variable_and_an_empty_one_is_none():
    words = ["--runtime", "plain", "--power-saving"]

    options = cli.parser({"BERTH_RUNTIME": "docker", "BERTH_DRIVER": ""}).parse_args(words)
    settle(options)

    assert (options.runtime, options.driver, options.power_saving) == ("plain", "auto", True)


@pytest.mark.parametrize(
    ("word", "is_on"), [("1", True), ("yes", True), ("On", True), ("0", False), ("", False)]
)
def test_power_saving_is_switched_by_the_usual_words(word, is_on):
    options = cli.parser({"BERTH_POWER_SAVING": word}).parse_args([])
    settle(options)

    assert options.power_saving is is_on


def test_layouts_are_named_for_all_boards_or_for_some():
    def of(text: str) -> dict[str, str]:
        return layouts(cli.parser({}).parse_args(["--layout", text]))

    assert of("") == {}
    assert of("CPX.NPS4") == {"*": "cpx.nps4"}
    assert of("MI300X=cpx, AMD-0a1b=dpx, *=spx") == {"mi300x": "cpx", "amd-0a1b": "dpx", "*": "spx"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--driver", "nvml", "--board", "l40s"], "add --driver simulated or simulated-nvml"),
        (["--fault-rate", "0.5"], "add --driver simulated or simulated-nvml"),
        (["--driver", "nvml", "--layout", "cpx"], "it cuts AMD boards"),
        (["--driver", "ascend", "--dcgm", "http://localhost:9400/metrics"], "it asks about NVIDIA devices"),
        ([*L40S[6:], "--offer", "mps"], "takes --modes"),
        ([*L40S[6:], "--runtime", "cdi"], "plays its holders itself"),
        ([*L40S[6:], "--script", "x.json"], "host of --driver simulated-nvml"),
        ([*L40S[6:], "--fleet", "demo"], "--board and --fleet both say what to simulate"),
        (["--driver", "simulated", "--fleet", "demo", "--count", "2"], "go with --board"),
        ([*PLAYED[2:], "--health", "0:63:warning:row"], "by --script"),
        ([*PLAYED[2:], "--latency", "banana=3"], "'banana' is no call of the simulated library"),
        ([*PLAYED[2:], "--fault-rate", "2"], "'fault_rate' must be a number from 0 to 1"),
        (["--driver", "simulated-nvml", "--board", "hygon-dcu-64gb"], "no NVIDIA board"),
    ],
)
def test_options_that_a_driver_does_not_know_are_refused(words, sentence, tmp_path, capsys):
    assert cli.main(["check", "--node", "gpu-01", "--state", str(tmp_path), *words], {}) == cli.USAGE

    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("driver", "name", "value", "option", "usual"),
    [
        ("amd", "BERTH_DCGM_URL", "http://localhost:9400/metrics", "dcgm", ""),
        ("amd", "BERTH_POWER_SAVING", "1", "power_saving", False),
        ("nvml", "BERTH_LAYOUT", "cpx", "layout", ""),
        ("simulated", "BERTH_RUNTIME", "cdi", "runtime", "auto"),
        ("simulated", "BERTH_ORPHANS", "kill", "orphans", "report"),
    ],
)
def test_a_variable_of_other_hosts_is_passed_over_with_a_warning(driver, name, value, option, usual, caplog):
    options = cli.parser({"BERTH_DRIVER": driver, name: value}).parse_args([])

    settle(options)

    assert getattr(options, option) == usual
    assert f"{name} is passed over, --driver {driver} does not know it" in caplog.text


def test_boards_of_a_played_host_offer_the_same_modes_or_are_refused(tmp_path, capsys):
    spec = {"boards": [{"board": "h100-80gb", "modes": ["mig"]}, {"board": "l40s", "modes": ["mps"]}]}
    (tmp_path / "node.json").write_text(json.dumps(spec))
    words = ["--driver", "simulated-nvml", "--spec", str(tmp_path / "node.json"), "--state", str(tmp_path)]

    assert cli.main(["check", *words], {}) == cli.USAGE
    assert "the same modes on all its NVIDIA devices" in capsys.readouterr().err


def test_a_played_host_obeys_modes_and_runtime(tmp_path, capsys):
    words = [*PLAYED, "--state", str(tmp_path), "--modes", "exclusive", "--runtime", "plain"]

    assert cli.main(["check", "--json", *words], {}) == cli.OK

    found = json.loads(capsys.readouterr().out)
    assert found["runtime"]["name"] == "plain"
    assert found["devices"][0]["offers"] == ["exclusive"]


def apply_slice(tmp_path, capsys, *words: str, remaining_s: int = 60, on=PLAYED) -> tuple[int, dict]:
    device = json.loads(checked(tmp_path, capsys, on))["devices"][0]["uuid"]
    slot = {"device": device, "mode": "mig", "start": 0, "size": 1, "share_milli": 143, "memory_mib": 9984}
    lease = {
        "lease": "l-1",
        "generation": 1,
        "team": "t",
        "user": "alice",
        "remaining_s": remaining_s,
        "grace_s": 5,
    }
    goal = {"leases": [{**lease, "slots": [{**slot, "profile": "1g.10gb"}]}]}
    (tmp_path / "goal.json").write_text(json.dumps(goal))
    where = ["--state", str(tmp_path), "--within", "0.3", "--json", *words]
    code = cli.main(["apply", str(tmp_path / "goal.json"), *on, *where], {})
    return code, json.loads(capsys.readouterr().out)


def checked(tmp_path, capsys, on) -> str:
    assert cli.main(["check", "--json", *on, "--state", str(tmp_path)], {}) == cli.OK
    return capsys.readouterr().out


def test_a_plan_ends_what_is_over_as_the_agent_would(tmp_path, capsys):
    _, planned = apply_slice(tmp_path, capsys, "--dry-run", remaining_s=0)
    _, done = apply_slice(tmp_path, capsys, remaining_s=0)

    assert [lease["phase"] for lease in planned["leases"]] == ["gone"]
    assert planned["leases"] == done["leases"]
    assert not any(step["action"].startswith("make") for step in planned["steps"])


def test_explain_tells_the_nodes_of_a_lease_in_words_too(tmp_path, capsys):
    lasting = ["--node", "gpu-01", "--driver", "simulated", "--board", "h100-80gb", "--count", "1"]
    assert apply_slice(tmp_path, capsys, "--within", "5", on=lasting)[0] == 0

    assert cli.main(["explain", "l-1", *lasting, "--state", str(tmp_path)], {}) == cli.OK

    assert "reached by /dev/nvidia" in capsys.readouterr().out


def test_a_played_host_obeys_the_chance_of_faults(tmp_path, capsys):
    code, found = apply_slice(tmp_path, capsys, "--fault-rate", "1")

    assert (code, found["settled"]) == (1, False)
    assert found["leases"][0]["phase"] == "preparing"


def test_a_played_host_obeys_latency(tmp_path, capsys, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(simulating.time, "sleep", slept.append)

    code, _ = apply_slice(tmp_path, capsys, "--latency", "create=2.5", "--within", "5")

    assert code == 0
    assert 2.5 in slept


def test_check_asks_a_host_for_its_ways_in_once(tmp_path, monkeypatch):
    def none(*words: object, **facts: object) -> None:
        raise DriverUnavailableError("no device here")

    asked: list[str] = []
    choose = opening.choose
    monkeypatch.setattr(opening.registry, "open_real", none)
    monkeypatch.setattr(opening, "choose", lambda name, *a, **b: asked.append(name) or choose(name, *a, **b))

    cli.main(["check", "--runtime", "plain", "--run-dir", str(tmp_path / "run")], {})

    assert asked == ["plain"]


def test_check_tells_what_it_knows_of_a_host_without_devices(tmp_path, monkeypatch, capsys):
    def none(*words: object, **facts: object) -> None:
        raise DriverUnavailableError("no device here")

    monkeypatch.setattr(opening.registry, "open_real", none)
    words = ["check", "--driver", "nvml", "--runtime", "plain", "--run-dir", str(tmp_path / "run")]

    assert cli.main([*words, "--json"], {}) == cli.NO_DRIVER
    found = json.loads(capsys.readouterr().out)
    assert cli.main(words, {}) == cli.NO_DRIVER
    said = capsys.readouterr()

    assert (found["driver"], found["devices"], found["no_driver"]) == (None, [], "no device here")
    assert found["runtime"]["name"] == "plain"
    assert isinstance(found["is_root"], bool)
    assert "runtime   plain" in said.out
    assert "no device here" in said.err


@pytest.mark.deep
def test_a_reader_who_leaves_early_ends_the_command_quietly():
    program = [sys.executable, "-m", "nodeagent", "check", "--driver", "simulated", "--board", "h100-80gb"]

    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        running.stdout.close()
        said = running.stderr.read()

    assert (running.returncode, said) == (cli.UNREAD, "")


@pytest.mark.parametrize("rounds", ["0", "-3", "many"])
def test_a_soak_of_no_rounds_proves_nothing(rounds, capsys):
    with pytest.raises(SystemExit) as no:
        cli.main(["soak", "--rounds", rounds], {})

    assert no.value.code == cli.USAGE
    assert "give 1 or more" in capsys.readouterr().err


def test_soak_tells_how_far_it_is_in_lines_of_its_own(monkeypatch, capsys, caplog):
    monkeypatch.setattr(soak, "TELL_EVERY_S", 0.0)
    monkeypatch.setattr(soak.logging, "disable", lambda level: None)

    assert cli.main(["soak", "--rounds", "2", "--on", "simulated", "--json"], {}) == cli.OK

    said = capsys.readouterr()
    assert json.loads(said.out)["rounds"] == 2
    assert re.search(r"^2 rounds, \d+ crashes so far$", said.err, re.MULTILINE)
    assert [record for record in caplog.records if record.levelname == "CRITICAL"] == []


@pytest.mark.parametrize(
    ("token", "has_key", "is_told"),
    [(None, False, True), ("", False, True), ("t-1", False, False), (None, True, False)],
)
def test_a_new_node_is_told_that_its_token_cannot_be_read(
    token, has_key, is_told, tmp_path, monkeypatch, caplog
):
    async def run(self: Agent) -> None:
        pass

    monkeypatch.setattr(Agent, "run", run)
    if token is not None:
        (tmp_path / "token").write_text(token)
    if has_key:
        Identity("gpu-01", tmp_path)
    words = [*L40S, "--count", "1", "--enrol-token-file", str(tmp_path / "token")]

    assert cli.main([str(tmp_path) if word == "{}" else word for word in words], {}) == cli.OK

    assert ("lets no new node in without its token" in caplog.text) is is_told


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


def test_agent_of_a_real_host_loads_no_simulation():
    program = (
        "import sys; from nodeagent import cli; cli.main(['check', '--driver', 'nvml', '--node', 'gpu-01']);"
        "print([name for name in sys.modules if name.startswith('nodeagent.simulation')])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"
