"""The contract with real devices.

Reading: ``pytest -m gpu tests/gpu``. Writing: ``pytest -m gpu_write tests/gpu --allow-gpu-writes``, as root, on an
idle and empty device. Both run on simulated devices in every test run. Options: ``--gpu``, ``--gpu-record``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nodeagent.drivers.errors import NvmlLikeError
from tests.gpu.devices import Device, NoDeviceError, real, simulated
from tests.gpu.guard import FLAG, NotAllowedError, require_writable
from tests.gpu.record import Recorder, is_real, reason_of, test_of

WHICH, RECORD = "--gpu", "--gpu-record"
RECORDER = "gpu-recorder"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        FLAG, action="store_true", default=False, help="let tests change a real GPU that is idle and empty"
    )
    parser.addoption(WHICH, default="", help="the real GPU to test, by UUID or index (the first)")
    parser.addoption(RECORD, default="", help="a file for what the real GPU said and how each test ended")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption(RECORD, default="")
    if not path or hasattr(config, "workerinput"):
        return
    if config.getoption("numprocesses", default=None):
        raise pytest.UsageError(f"{RECORD} needs all tests in one process; leave -n out")
    try:
        config.pluginmanager.register(Recorder(Path(path)), RECORDER)
    except OSError as no:
        raise pytest.UsageError(f"{RECORD}: {path} cannot be written ({no.strerror})") from no


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why tests with the real device were skipped, where somebody asked for them."""
    if "gpu" not in config.getoption("markexpr", default=""):
        return
    why: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        if is_real(report.nodeid):
            why.setdefault(reason_of(report), []).append(test_of(report))
    for reason, names in why.items():
        terminalreporter.write_line(f"skipped {', '.join(names) if len(names) < 3 else len(names)}: {reason}")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short name: MPS keeps sockets in it, whose paths have little room."""
    with tempfile.TemporaryDirectory(prefix="berth-") as folder:
        yield Path(folder)


@pytest.fixture
def open_device(request: pytest.FixtureRequest, short_path: Path) -> Callable[[str], Device]:
    """Return how a device is opened: "real", which is skipped where there is none, or a board to simulate."""

    def opened(kind: str) -> Device:
        if kind != "real":
            return simulated(short_path, kind)
        if "PYTEST_XDIST_WORKER" in os.environ:
            pytest.skip("a real GPU is tested by one process; leave -n out")
        try:
            return real(short_path, request.config.getoption(WHICH, default=""))
        except NoDeviceError as no:
            pytest.skip(f"no real GPU: {no}")

    return opened


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Recorder | None:
    """What takes down the real device, where somebody asked for it."""
    found = request.config.pluginmanager.get_plugin(RECORDER)
    return found if isinstance(found, Recorder) else None


@pytest.fixture(params=["h100-80gb", "a30-24gb", "l40s-48gb", pytest.param("real", marks=pytest.mark.gpu)])
def device(
    request: pytest.FixtureRequest, open_device: Callable[[str], Device], recorder: Recorder | None
) -> Iterator[Device]:
    """A device to read from."""
    found = open_device(request.param)
    if recorder is not None and found.host is None:
        recorder.take(found)
    yield found
    if recorder is not None and found.host is None:
        recorder.note(found)
    found.driver.close()


@pytest.fixture(params=["h100-80gb", "a30-24gb", pytest.param("real", marks=pytest.mark.gpu_write)])
def writable(
    request: pytest.FixtureRequest, open_device: Callable[[str], Device], recorder: Recorder | None
) -> Iterator[Device]:
    """A device that may be changed; afterwards it must be as it was."""
    is_of_host = request.param == "real"
    allowed = not is_of_host or bool(request.config.getoption(FLAG, default=False))
    if not allowed:
        pytest.skip(f"changes a real GPU: give {FLAG}")
    found = open_device(request.param)
    if recorder is not None and is_of_host:
        recorder.take(found)
    try:
        require_writable(found, allowed=allowed)
    except NotAllowedError as no:
        pytest.skip(str(no))
    try:
        with leave_as_it_was(found):
            yield found
    finally:
        if recorder is not None and is_of_host:
            recorder.note(found)
        found.driver.close()


@contextmanager
def leave_as_it_was(device: Device) -> Iterator[None]:
    """Put back what happens to a device inside, and find out whether that succeeded."""
    before = device.state()
    try:
        yield
    finally:
        put_back(device, before["controllers of the root cgroup"])
    assert device.state() == before


def put_back(device: Device, passed_on: tuple[str, ...] | None) -> None:
    """Remove what a test left: only what it made itself, on a device that was empty before it.

    What cannot be removed does not keep the rest from being; whatever is left is found by comparing states.
    """
    device.driver.close()
    driver = device.driver = device.agent()
    for fact in driver.observe(device.uuid):
        with suppress(NvmlLikeError):
            driver.detach(fact.uuid, kill=True)
            driver.destroy(fact.uuid)
    if device.mig_modes and device.mig_modes != (0, 0):
        with suppress(NvmlLikeError):
            driver.set_mig_mode(device.uuid, False)
    with suppress(OSError):
        device.pass_on_as(passed_on)
