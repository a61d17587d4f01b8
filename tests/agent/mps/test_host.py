"""MPS over the simulated host: the library of its devices, its processes and its program together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.drivers import errors
from nodeagent.drivers.errors import NvmlLikeError
from nodeagent.drivers.nvml.mps.servers import Mps, MpsShare
from nodeagent.host.accounts import Account
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.machine.world import SimulatedShell
from nodeagent.simulation.nvml import SimulatedNvml
from nodeagent.simulation.programs.mps_host import mps_on

UIDS = {"alice": 1001}


class Node:
    def __init__(self, run_dir: Path, newest: int) -> None:
        self.host = SimulatedHost(["h100-80gb"], sleep=lambda s: None)
        self.library: Any = SimulatedNvml(self.host)
        self.library.nvmlInit()
        self.program = mps_on(self.host, UIDS, newest=newest)
        self.device = self.host.device(0)
        shell = SimulatedShell({"nvidia-cuda-mps-control": self.program})
        self.mps = Mps(
            self.library,
            shell,
            run_dir,
            account=lambda user: Account(UIDS[user], UIDS[user], f"/home/{user}"),
            own=lambda path, uid, gid: None,
            pause=lambda s: None,
            socket_room=250,
        )

    def share(self) -> MpsShare:
        return MpsShare("MPS-a", "lease-a.1", self.device.uuid, "alice", 250, 8192)


@pytest.fixture(params=[2, 3], ids=["classic", "named"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path, request.param)


def test_the_device_lists_server_and_client_and_lets_only_them_in(node: Node) -> None:
    node.mps.open(node.share(), [node.share()])
    process = node.host.world.spawn("/berth/a", user="alice", memory_mib=500)

    found = node.program.connect(process, node.mps.access(node.share()).env, node.device.uuid)

    names = {p.name for p in node.host.world.on(node.device.uuid)}
    handle = node.library.nvmlDeviceGetHandleByIndex(0)
    listed = [p.pid for p in node.library.nvmlDeviceGetMPSComputeRunningProcesses(handle)]
    assert (found, names) == ("mps", {"nvidia-cuda-mps-server", "python"})
    assert listed == [process.pid]
    assert node.device.compute_mode == 3


def test_changes_go_through_the_hook_of_the_host(node: Node) -> None:
    seen: list[str] = []
    node.host.on_change = seen.append

    node.mps.open(node.share(), [node.share()])

    assert {"nvmlDeviceSetComputeMode.before", "mps.start.before", "mps.start.after"} <= set(seen)


def test_a_daemon_on_a_lost_device_can_be_closed_and_none_is_opened(node: Node) -> None:
    node.mps.open(node.share(), [node.share()])
    node.host.lose(0)

    node.mps.close(node.device.uuid, "alice")

    assert node.mps.daemons() == []
    with pytest.raises(NvmlLikeError) as told:
        node.mps.open(node.share(), [node.share()])
    assert told.value.code == errors.GPU_IS_LOST


def test_an_agent_that_is_not_root_is_told_what_to_allow(node: Node) -> None:
    node.host.is_root = False

    with pytest.raises(NvmlLikeError, match="run the agent as root"):
        node.mps.open(node.share(), [node.share()])
