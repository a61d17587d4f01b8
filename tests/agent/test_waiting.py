"""Starts that wait: how long, for what, what they say meanwhile, and how they end."""

from __future__ import annotations

import asyncio
import configparser
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodeagent import cli
from nodeagent.commands import opening
from nodeagent.commands.install import AGENT_TEXT
from nodeagent.drivers import errors, registry, waiting
from nodeagent.drivers.amd.driver import AmdDriver
from nodeagent.drivers.ascend.driver import AscendDriver
from nodeagent.drivers.base import Driver
from nodeagent.drivers.cambricon.driver import CambriconDriver
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.drivers.hygon.driver import HygonDriver
from nodeagent.drivers.waiting import Patience, late, missing, wait_for_devices, wait_for_latecomers
from nodeagent.host.shell import Done, ProgramError
from nodeagent.link.agent import Agent
from nodeagent.simulation.full_host import FullHost
from nodeagent.simulation.machine.world import SimulatedShell
from tests.agent.test_amd import AmdSmi
from tests.agent.test_ascend import NpuSmi
from tests.agent.test_cambricon import Cnmon, Library
from tests.agent.test_hygon import HySmi

LATE = "npu-smi did not answer within 20 s"
HERE = ["--node", "gpu-01", "--driver", "ascend", "--runtime", "plain"]


@dataclass
class Clock:
    """Seconds that pass only while somebody pauses or waits for a tool."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)

    def patience(self, first_s: float = 120, rest_s: float = 30) -> Patience:
        return Patience(first_s, rest_s, clock=lambda: self.now, pause=self.pause)


@pytest.fixture
def clock() -> Clock:
    return Clock()


Answer = Callable[[Sequence[str]], Done | None]


def npu(folder: Path, refuse: Answer) -> Callable[[], Driver]:
    """Two chips whose tool answers unless it refuses first."""
    tool = NpuSmi()

    def program(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        return refuse(argv) or tool(argv, stdin, env)

    return lambda: AscendDriver("boot", SimulatedShell({"npu-smi": program}), folder, lambda path: "")


def silent_until(clock: Clock, until: float) -> Answer:
    """No answer before that second; every call in vain takes its 20 seconds."""

    def refuse(argv: Sequence[str]) -> None:
        if clock.now < until:
            clock.now += 20
            raise ProgramError(LATE)

    return refuse


def test_start_waits_for_a_tool_that_answers_late_and_says_so_once(clock, tmp_path, caplog):
    driver = wait_for_devices(npu(tmp_path, silent_until(clock, 70)), clock.patience())

    assert len(driver.inventory()) == 2
    assert 70 <= clock.now < 100
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting up to 100 s for the devices of this node: {LATE}"
    ]


def test_pauses_grow_and_stay_short_enough_to_notice_the_devices_soon(clock, tmp_path):
    with pytest.raises(DriverUnavailableError):
        wait_for_devices(npu(tmp_path, lambda argv: Done(1, "", "driver is loading")), clock.patience())

    assert clock.pauses[:5] == [1, 2, 4, 8, 10]
    assert max(clock.pauses) == 10
    assert clock.now == 120


def test_tool_that_never_answers_ends_with_what_happened_and_what_to_do(clock, tmp_path):
    with pytest.raises(DriverUnavailableError) as no:
        wait_for_devices(npu(tmp_path, silent_until(clock, 1e9)), clock.patience())

    assert 120 <= clock.now < 145, "the last try may outlast the patience, no other begins"
    assert str(no.value).startswith("no device answered within")
    assert LATE in str(no.value)
    assert "berth-agent check" in str(no.value)
    assert no.value.waits_for == LATE


def test_what_has_to_be_installed_or_allowed_is_not_waited_for(clock, tmp_path):
    none = SimulatedShell({})
    barred = npu(tmp_path, lambda argv: Done(1, "", "permission denied"))

    def may_not(argv: Sequence[str]) -> Done:
        raise ProgramError("npu-smi cannot be run: [Errno 13] Permission denied: 'npu-smi'")

    finds = (lambda: AscendDriver("boot", none, tmp_path, lambda path: ""), barred, npu(tmp_path, may_not))
    for find in finds:
        with pytest.raises(DriverUnavailableError) as no:
            wait_for_devices(find, clock.patience())
        assert no.value.waits_for == ""
    assert clock.pauses == []


def chip_is_silent(clock: Clock, until: float) -> Answer:
    def refuse(argv: Sequence[str]) -> Done | None:
        is_first = "-i" in argv and argv[argv.index("-i") + 1] == "0"
        return Done(255, "", "the device is not ready") if is_first and clock.now < until else None

    return refuse


def test_chip_that_comes_up_a_little_later_than_the_others_is_waited_for(clock, tmp_path):
    driver = wait_for_devices(npu(tmp_path, chip_is_silent(clock, 20)), clock.patience())

    assert [fact.index for fact in driver.inventory()] == [0, 1]
    assert late(driver) == ""
    assert 20 <= clock.now <= 30


def test_chip_that_stays_silent_holds_the_others_up_for_half_a_minute_only(clock, tmp_path, caplog):
    driver = wait_for_devices(npu(tmp_path, chip_is_silent(clock, 1e9)), clock.patience())

    assert [fact.index for fact in driver.inventory()] == [1]
    assert clock.now == 30
    assert "going on without what does not answer: chip 0 of card 0" in caplog.messages[-1]
    assert "the device is not ready" in caplog.messages[-1]


def test_chip_that_told_its_name_earlier_in_this_boot_is_kept_without_waiting(clock, tmp_path):
    npu(tmp_path, lambda argv: None)()

    driver = wait_for_devices(npu(tmp_path, chip_is_silent(clock, 1e9)), clock.patience())

    assert {fact.index for fact in driver.inventory()} == {0, 1}
    assert clock.pauses == []


def test_devices_are_offered_in_shares_once_the_tool_that_cuts_them_answers(clock, tmp_path):
    tool = HySmi()

    def program(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        if argv[1] == "virtual" and clock.now < 12:
            raise ProgramError("hy-smi did not answer within 20 s")
        return tool(argv, stdin, env)

    def find() -> Driver:
        return HygonDriver("boot", SimulatedShell({"hy-smi": program}), tmp_path, tool.read, can_bind=True)

    assert find().inventory()[0].modes == ("exclusive",)

    driver = wait_for_devices(find, clock.patience())

    assert driver.inventory()[0].modes == ("exclusive", "memlimit")


def cambricon(folder: Path, clock: Clock) -> Callable[[], Driver]:
    """Two devices; the memory of one is known after six seconds, and CNDEV starts after twelve."""
    tool, library = Cnmon(), Library()
    whole = tool.text
    shell = SimulatedShell({"cnmon": tool, "env": tool})

    def find() -> Driver:
        tool.text = whole if clock.now >= 6 else whole.replace('"Total": 24576', '"Total": "N/A"', 1)
        library.cndevInit = lambda reserved: 0 if clock.now >= 12 else 4  # type: ignore[method-assign]
        return CambriconDriver("boot", shell, folder, tool.read, library=library)

    return find


def amd(folder: Path, clock: Clock) -> Callable[[], Driver]:
    """Two boards; the kernel and the tool tell the memory of one after twelve seconds."""
    tool = AmdSmi()

    def read(path: str) -> str:
        if clock.now < 12 and "0000:0c" in path:
            raise OSError(path)
        return tool.read(path)

    def program(argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        done = tool(argv, stdin, env)
        return Done(0, done.out.replace('"vram"', '"not yet"')) if clock.now < 12 else done

    return lambda: AmdDriver("boot", SimulatedShell({"amd-smi": program}), folder, read)


@pytest.mark.parametrize("vendor", [cambricon, amd], ids=lambda vendor: vendor.__name__)
def test_device_that_does_not_tell_its_memory_yet_is_waited_for(vendor, clock, tmp_path):
    find = vendor(tmp_path, clock)
    assert len(find().inventory()) == 1

    driver = wait_for_devices(find, clock.patience())

    assert [(fact.index, bool(fact.modes)) for fact in driver.inventory()] == [(0, True), (1, True)]
    assert 12 <= clock.now <= 15


@pytest.mark.parametrize(
    ("call", "code", "wait_s"),
    [
        ("nvmlInit", errors.DRIVER_NOT_LOADED, 7),
        ("nvmlDeviceGetCount", errors.UNKNOWN, 7),
        ("nvmlInit", errors.LIBRARY_NOT_FOUND, None),
        ("nvmlInit", errors.LIB_RM_VERSION_MISMATCH, None),
    ],
)
def test_nvidia_devices_that_come_up_late_are_waited_for_and_a_missing_library_is_not(
    call, code, wait_s, clock, tmp_path
):
    home = FullHost("gpu-01", ["a100-80gb"], tmp_path, lambda: 0)
    home.host.faults.refusals[call] = deque([code] * 3)

    if wait_s is None:
        with pytest.raises(DriverUnavailableError):
            wait_for_devices(home.driver, clock.patience())
    else:
        assert [fact.index for fact in wait_for_devices(home.driver, clock.patience()).inventory()] == [0]

    assert clock.now == (wait_s or 0)


def unavailable(sentence: str, *, is_passing: bool) -> Callable[..., Driver]:
    def find(*words: object, **facts: object) -> Driver:
        raise DriverUnavailableError(sentence, waits_for=sentence if is_passing else "")

    return find


def test_auto_waits_for_the_driver_that_is_installed_and_names_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "open_nvml", unavailable("no NVIDIA driver", is_passing=False))

    def vendor(name: str, *words: object, **facts: object) -> Driver:
        return unavailable(f"{name} is silent", is_passing=name == "ascend")()

    monkeypatch.setattr(registry, "_open_vendor", vendor)

    with pytest.raises(DriverUnavailableError) as no:
        registry.open_real("auto", run_dir=tmp_path)

    assert no.value.waits_for == "ascend: ascend is silent"
    assert "nvml: no NVIDIA driver; amd: amd is silent" in str(no.value)


def test_start_in_vain_ends_with_the_status_for_no_driver(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(opening.registry, "open_real", unavailable(LATE, is_passing=True))
    words = [*HERE, "--portal", "ws://127.0.0.1:9", "--state", str(tmp_path), "--patience", "0"]

    assert cli.main(words, {}) == cli.NO_DRIVER

    said = capsys.readouterr().err
    assert f"no device answered within 0 s ({LATE})" in said
    assert "--driver simulated" not in said


def test_wait_can_be_interrupted(tmp_path, monkeypatch, capsys):
    def find(*words: object, **facts: object) -> Driver:
        raise KeyboardInterrupt

    monkeypatch.setattr(opening.registry, "open_real", find)

    assert cli.main([*HERE, "--portal", "ws://127.0.0.1:9", "--state", str(tmp_path)], {}) == 130
    assert capsys.readouterr().err.endswith("berth-agent: interrupted\n")


def test_unit_starts_the_agent_again_after_that_status_and_never_gives_up():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(AGENT_TEXT)

    assert unit["Service"]["Restart"] == "always"
    assert int(unit["Service"]["RestartSec"]) > 0
    assert "RestartPreventExitStatus" not in unit["Service"]
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert unit["Service"]["Type"] == "exec", "a start counts as done while the agent still waits"


def test_check_tells_what_a_start_would_wait_for_and_how_long(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(opening.registry, "open_real", unavailable(LATE, is_passing=True))
    words = ["check", *HERE, "--run-dir", str(tmp_path / "run")]

    assert cli.main([*words, "--patience", "60"], {}) == cli.NO_DRIVER
    said = capsys.readouterr().out
    assert cli.main([*words, "--json"], {"BERTH_PATIENCE_S": "45"}) == cli.NO_DRIVER
    found = json.loads(capsys.readouterr().out)

    assert "driver    none yet" in said
    assert f"waits     up to 60 s at a start, for {LATE}" in said
    assert (found["driver"], found["devices"], found["health"]) == (None, [], None)
    assert found["waits"] == {"for": LATE, "most_s": 45}
    assert found["runtime"]["name"] == "plain"


def test_check_names_the_chip_that_is_late(clock, tmp_path, monkeypatch, capsys):
    driver = npu(tmp_path / "tool", chip_is_silent(clock, 1e9))()
    monkeypatch.setattr(opening.registry, "open_real", lambda *words, **facts: driver)

    assert cli.main(["check", *HERE, "--run-dir", str(tmp_path / "run")], {}) == cli.OK

    said = capsys.readouterr().out
    assert "waits     up to 30 s at a start, for chip 0 of card 0: npu-smi info" in said
    assert "device 1" in said


@pytest.mark.parametrize("seconds", ["-1", "nan", "3601"])
def test_patience_without_sense_is_refused(seconds, tmp_path, capsys):
    words = [*HERE, "--portal", "ws://127.0.0.1:9", "--state", str(tmp_path), f"--patience={seconds}"]

    assert cli.main(words, {}) == cli.USAGE
    assert "--patience is a number of seconds from 0 to 3600" in capsys.readouterr().err


def minutes_of(clock: Clock) -> Callable[[float], Awaitable[None]]:
    async def rest(seconds: float) -> None:
        clock.pause(seconds)
        if clock.now > 3600:
            raise TimeoutError

    return rest


async def test_what_was_left_out_is_asked_again_each_minute_until_it_answers(clock, tmp_path):
    find = npu(tmp_path, chip_is_silent(clock, 200))
    driver = wait_for_devices(find, clock.patience())
    assert (missing(driver), clock.now) == ({0}, 30)
    clock.pauses.clear()

    await wait_for_latecomers(find, driver, minutes_of(clock))

    assert clock.pauses == [60, 60, 60]
    assert missing(find()) == frozenset()


@pytest.mark.parametrize(
    "answer",
    [
        lambda clock: silent_until(clock, 1e9),
        lambda clock: lambda argv: Done(1, "", "permission denied"),
        lambda clock: chip_is_silent(clock, 1e9),
    ],
    ids=["silent", "barred", "unchanged"],
)
async def test_a_node_goes_on_while_no_tool_answers_or_nothing_has_changed(answer, clock, tmp_path):
    driver = wait_for_devices(npu(tmp_path, chip_is_silent(clock, 1e9)), clock.patience())

    with pytest.raises(TimeoutError):
        await wait_for_latecomers(npu(tmp_path, answer(clock)), driver, minutes_of(clock))


async def test_a_look_that_fails_as_nobody_thought_is_told_once_and_the_node_goes_on(clock, tmp_path, caplog):
    driver = wait_for_devices(npu(tmp_path, chip_is_silent(clock, 1e9)), clock.patience())
    caplog.clear()

    def broken() -> Driver:
        raise RuntimeError("a form that nobody knows" if clock.now < 1000 else "another one")

    with pytest.raises(TimeoutError):
        await wait_for_latecomers(broken, driver, minutes_of(clock))

    told = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert told == ["a form that nobody knows", "another one"]


async def test_a_node_with_all_its_devices_asks_nothing(clock, tmp_path):
    asked: list[Sequence[str]] = []
    find = npu(tmp_path, lambda argv: asked.append(argv))
    driver = wait_for_devices(find, clock.patience())
    asked.clear()

    with pytest.raises(TimeoutError):
        await wait_for_latecomers(find, driver, minutes_of(clock))

    assert asked == []


def test_operators_are_told_what_a_node_goes_on_without(clock, tmp_path):
    driver = wait_for_devices(npu(tmp_path, chip_is_silent(clock, 100)), clock.patience())

    (fact,) = driver.health()

    assert (fact.device, fact.code, fact.severity) == ("", "card_late", "warning")
    assert "chip 0 of card 0" in fact.detail
    clock.now = 100
    assert npu(tmp_path, lambda argv: None)().health() == []


def test_agent_starts_anew_with_the_devices_that_came_and_once_more_only_when_told(
    tmp_path, monkeypatch, caplog
):
    silent = [True]
    refuse: Answer = lambda argv: chip_is_silent(Clock(), 1e9 if silent[0] else 0)(argv)  # noqa: E731
    lives: list[tuple[int, bool]] = []

    def find(*words: object, looks_only: bool = False, **facts: object) -> Driver:
        return npu(tmp_path / "tool", refuse)()

    async def run(self: Agent) -> None:
        lives.append((len(self._driver.inventory()), silent[0]))
        if silent[0]:
            silent[0] = False
            await asyncio.Event().wait()

    monkeypatch.setattr(opening.registry, "open_real", find)
    monkeypatch.setattr(Agent, "run", run)
    monkeypatch.setattr(waiting, "AGAIN_S", 0.0)
    words = [*HERE, "--portal", "ws://127.0.0.1:9", "--state", str(tmp_path), "--patience", "0"]

    with caplog.at_level("INFO"):
        assert cli.main(words, {}) == cli.OK

    assert lives == [(1, True), (2, False)]
    assert "the agent starts anew with them, leases go on" in caplog.text
