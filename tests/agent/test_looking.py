"""Commands that look: not a byte of the host's folders changes, while the agent at work brings the same in order."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from nodeagent import cli
from nodeagent.commands import opening
from nodeagent.drivers.amd.driver import AmdDriver
from nodeagent.drivers.ascend.driver import AscendDriver
from nodeagent.drivers.base import Driver
from nodeagent.drivers.boot_devices import BootDevices
from nodeagent.drivers.cambricon.driver import CambriconDriver
from nodeagent.drivers.hygon.driver import HygonDriver
from nodeagent.drivers.shares import HeldShare, ShareBook, write_file
from nodeagent.host.shell import Done
from nodeagent.link.identity import lock_state
from nodeagent.protocol.boards import device_facts
from nodeagent.runtimes.cdi import CdiSpecs
from nodeagent.runtimes.choice import choose
from nodeagent.simulation.full_host import FullHost
from nodeagent.simulation.machine.world import SimulatedShell
from tests.agent.builder import lease
from tests.agent.test_amd import AmdSmi
from tests.agent.test_ascend import NpuSmi
from tests.agent.test_cambricon import Cnmon, Library
from tests.agent.test_hygon import HySmi
from tests.agent.test_runtime_doors import GRANT
from tests.agent.test_vendor_leases import VendorNode

Open = Callable[..., Driver]
Snapshot = dict[str, tuple[int, int, bytes]]

OLD_BOOT = "ffffffff-1111-4000-8000-000000000001"


def amd(folder: Path) -> Open:
    tool = AmdSmi()
    return partial(AmdDriver, "boot", SimulatedShell({"amd-smi": tool}), folder, tool.read)


def hygon(folder: Path) -> Open:
    tool = HySmi()
    return partial(HygonDriver, "boot", SimulatedShell({"hy-smi": tool}), folder, tool.read, can_bind=True)


class CnmonOnDisk(Cnmon):
    """Writes a file of its own at every call, as the real one does."""

    def __call__(self, argv: Sequence[str], stdin: str, env: Mapping[str, str]) -> Done:
        if argv[0] == "env":
            Path(argv[2], "cnmon_info.json").write_text(self.text)
        return super().__call__(argv, stdin, env)


def cambricon(folder: Path) -> Open:
    tool, library = CnmonOnDisk(), Library()
    shell = SimulatedShell({"cnmon": tool, "env": tool})
    return partial(CambriconDriver, "boot", shell, folder, tool.read, library=library)


def ascend(folder: Path) -> Open:
    return partial(AscendDriver, "boot", SimulatedShell({"npu-smi": NpuSmi()}), folder, lambda path: "")


def nvml(folder: Path) -> Open:
    home = FullHost("gpu-01", ["a100-80gb"], folder.parent, lambda: 0)
    return home.driver


def contents(*folders: Path) -> Snapshot:
    """Return mode, time of change and bytes of everything in folders; of a folder its names."""
    found: Snapshot = {}
    for folder in folders:
        for path in (folder, *sorted(folder.rglob("*"))):
            facts = path.stat()
            inside = path.read_bytes() if path.is_file() else "\n".join(sorted(os.listdir(path))).encode()
            found[str(path)] = (facts.st_mode, facts.st_mtime_ns, inside)
    return found


class Host:
    """A node with a lease, and with what a reboot and a crash of the agent left behind."""

    def __init__(self, root: Path, opened: Open, folder: str) -> None:
        self.run, self.cdi, self.state = root / "run", root / "cdi", root
        node = VendorNode(root, lambda folder: opened())
        node.desire(lease("alice", node.whole()))
        boot, other = node.driver.boot_id(), node.device()
        old = HeldShare("OLD-1", other, "bob.1.0", "memlimit", handle="7")
        half = HeldShare("HALF-1", other, "bob.2.0", "memlimit", made="1/1")
        write_file(self.run / folder / "OLD-1.json", {"boot_id": OLD_BOOT, **asdict(old)})
        write_file(self.run / folder / "HALF-1.json", {"boot_id": boot, **asdict(half)})
        (self.run / folder / "torn.json").write_text('{"boot_id"')
        CdiSpecs(self.cdi, boot_id=OLD_BOOT).open(GRANT)
        node.driver.close()
        goal = {"leases": [], "epoch": 1, "revision": 9}
        (root / "goal.json").write_text(json.dumps(goal))
        self.words = ["--node", "gpu-01", "--driver", "nvml", "--runtime", "cdi", "--run-dir", str(self.run)]
        self.words += ["--state", str(root)]

    def contents(self) -> Snapshot:
        return contents(self.state)

    def looks(self) -> list[list[str]]:
        return [
            ["check", *self.words],
            ["check", "--json", *self.words],
            ["explain", "alice", *self.words],
            ["apply", str(self.state / "goal.json"), "--dry-run", *self.words],
        ]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with a container engine, so that leases may be devices of containers."""
    tools = tmp_path.parent / f"{tmp_path.name}-bin"
    tools.mkdir()
    (tools / "docker").write_text("#!/bin/sh\n")
    (tools / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(opening, "choose", partial(choose, cdi_folder=tmp_path / "cdi"))


@pytest.fixture(params=[amd, hygon, cambricon, ascend, nvml], ids=lambda vendor: vendor.__name__)
def host(
    request: pytest.FixtureRequest, engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Host:
    opened = request.param(tmp_path / "run")
    folder = "shares" if request.param is nvml else request.param.__name__

    def open_real(name: str, *, looks_only: bool, **facts: object) -> Driver:
        return opened(looks_only=looks_only)

    monkeypatch.setattr(opening.registry, "open_real", open_real)
    return Host(tmp_path, opened, folder)


def test_looking_changes_not_a_byte(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    before = host.contents()

    for words in host.looks():
        assert cli.main(words, {}) == cli.OK, words

    assert host.contents() == before
    assert "alice" in capsys.readouterr().out


def test_the_agent_at_work_removes_what_looking_leaves(host: Host) -> None:
    before = host.contents()

    at_work = opening.open_host(cli.parser({}).parse_args(host.words), host.state)
    assert at_work.runtime is not None
    at_work.runtime.known()
    for fact in at_work.driver.inventory():
        at_work.driver.observe(fact.uuid)
    at_work.driver.close()

    gone = {Path(path).name.partition("-")[0] for path in before.keys() - host.contents().keys()}
    assert gone - {"HALF"} == {"OLD", "berth"}, "the share and the spec of the earlier boot"


def test_looking_into_an_empty_host_makes_no_file(host: Host, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    words = ["--run-dir", str(tmp_path / "other" / "run"), "--state", str(tmp_path / "other" / "state")]

    assert cli.main(["check", *host.words, *words], {}) == cli.OK

    assert list((tmp_path / "other").iterdir()) == []


def test_what_only_looks_believes_what_it_does_not_write(tmp_path: Path) -> None:
    ShareBook(tmp_path, "boot").put(HeldShare("A", "device", "alice.1.0", "memlimit"))
    before = contents(tmp_path)

    book = ShareBook(tmp_path, "boot", looks_only=True)
    book.put(HeldShare("B", "device", "bob.1.0", "memlimit"))
    book.drop("A")
    BootDevices(tmp_path / "cards.json", "boot", looks_only=True).keep(device_facts("gpu-01", "a100-80gb", 1))

    assert [share.partition for share in book.on("device")] == ["B"]
    assert contents(tmp_path) == before


@pytest.mark.parametrize("driver", ["simulated", "simulated-nvml"])
def test_looking_at_a_simulated_host_leaves_its_agent_alone(driver: str, tmp_path: Path) -> None:
    words = [
        "--driver",
        driver,
        "--board",
        "a100-80gb",
        "--count",
        "1",
        "--node",
        "gpu-01",
        "--state",
        str(tmp_path),
    ]
    (tmp_path / "goal.json").write_text(json.dumps({"leases": [], "epoch": 1, "revision": 1}))
    apply = ["apply", str(tmp_path / "goal.json"), *words]
    assert cli.main(apply, {}) == cli.OK
    before = contents(tmp_path)

    lock = lock_state(tmp_path)
    try:
        assert cli.main(["check", *words, "--reboot"], {}) == cli.OK
        assert cli.main([*apply, "--dry-run"], {}) == cli.OK
    finally:
        os.close(lock)

    assert contents(tmp_path) == before


def test_simulated_host_of_somebody_else_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hardware.jsonl").mkdir()  # cannot be read as a file, whoever asks
    words = ["--driver", "simulated", "--board", "a100-80gb", "--node", "gpu-01", "--state", str(tmp_path)]

    assert cli.main(["check", *words], {}) == cli.USAGE

    assert f"cannot read {tmp_path / 'hardware.jsonl'}" in capsys.readouterr().err
