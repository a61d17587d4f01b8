"""Leases as devices of containers: what a spec holds, who finds it, when it goes."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from nodeagent.host.shell import Done, ProgramError
from nodeagent.runtimes.base import LeaseGrant, RuntimeRefusedError
from nodeagent.runtimes.cdi import CdiSpecs, is_engines, mounts_of, spec_of, words_of
from nodeagent.simulation.machine.world import SimulatedShell

BOOT = "6f1b2c3d-0000-4000-8000-000000000001"
GRANT = LeaseGrant(
    lease="a1",
    generation=2,
    user="alice",
    team="vision",
    env={"CUDA_VISIBLE_DEVICES": "MIG-1"},
    nodes=("/dev/nvidiactl", "/dev/nvidia0"),
    ends_in_s=600,
    grace_s=30,
    folders=("/run/berth-agent/mps/GPU-1-alice",),
)
CONTAINER = f"/system.slice/docker-{'0a' * 32}.scope"

# The published schema (schema/defs.json of cncf-tags/container-device-interface), as far as specs of ours use it;
# it is stricter in one point: nothing that 0.3.0 does not know may appear.
TEXTS = {"type": "array", "items": {"type": "string"}}
SCHEMA = {
    "type": "object",
    "required": ["cdiVersion", "kind", "devices"],
    "additionalProperties": False,
    "properties": {
        "cdiVersion": {"enum": ["0.3.0", "0.5.0"]},
        "kind": {"type": "string", "pattern": r"^[a-z]+(\.[a-z]+)+/[A-Za-z][A-Za-z0-9_-]*$"},
        "devices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "containerEdits"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "pattern": r"^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"},
                    "containerEdits": {
                        "type": "object",
                        "additionalProperties": False,
                        "minProperties": 1,
                        "properties": {
                            "env": TEXTS,
                            "deviceNodes": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "required": ["path"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "path": {"type": "string", "pattern": "^/dev/"},
                                        "permissions": {"type": "string", "pattern": "^[rwm]+$"},
                                    },
                                },
                            },
                            "mounts": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "required": ["hostPath", "containerPath"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "hostPath": {"type": "string", "pattern": "^/"},
                                        "containerPath": {"type": "string", "pattern": "^/"},
                                        "options": TEXTS,
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


@dataclass
class Engine:
    """Processes of containers, and what the agent may read and send."""

    folder: Path
    processes: dict[int, tuple[str, dict[str, str]]] = field(default_factory=dict)
    sent: list[tuple[int, int]] = field(default_factory=list)

    def read(self, path: str) -> str:
        _, _, pid, name = path.split("/")
        if int(pid) not in self.processes:
            raise FileNotFoundError(path)
        cgroup, env = self.processes[int(pid)]
        return f"0::{cgroup}\n" if name == "cgroup" else "".join(f"{k}={v}\0" for k, v in env.items())

    def send(self, pid: int, number: int) -> None:
        if pid not in self.processes:
            raise ProcessLookupError
        self.sent.append((pid, number))

    def specs(self, boot_id: str = BOOT, **facts: object) -> CdiSpecs:
        given: dict[str, object] = {
            "read": self.read,
            "pids": lambda: sorted(self.processes),
            "send": self.send,
            "which": lambda name: f"/usr/bin/{name}",
            "is_root": True,
        }
        return CdiSpecs(self.folder, boot_id=boot_id, **(given | facts))  # type: ignore[arg-type]

    def files(self) -> list[str]:
        return sorted(os.listdir(self.folder)) if self.folder.exists() else []

    def spec(self) -> dict:
        (name,) = self.files()
        return json.loads((self.folder / name).read_text())


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "cdi")


def of_lease(cgroup: str = CONTAINER, lease: str = "a1", generation: int = 2) -> tuple[str, dict[str, str]]:
    return cgroup, {"PATH": "/bin", "BERTH_LEASE": lease, "BERTH_GENERATION": str(generation)}


@pytest.mark.parametrize(("version", "where"), [((4, 3, 1), False), ((5, 5, 0), True), (None, False)])
def test_podman_that_does_not_look_there_by_itself_is_told_the_folder(engine, version, where):
    entrance = engine.specs(podman=lambda: version).open(GRANT)

    assert entrance.words.get("cdi_dir") == (str(engine.folder) if where else None)


def test_an_open_lease_is_a_device_that_containers_find_by_its_name(engine):
    entrance = engine.specs().open(GRANT)

    assert entrance.words == {"runtime": "cdi", "cdi": "berth.local/lease=a1", "isolated": "no"}
    assert entrance.cgroup == ""
    spec = engine.spec()
    (device,) = spec["devices"]
    assert (spec["kind"], device["name"]) == ("berth.local/lease", "a1")
    edits = device["containerEdits"]
    assert edits["deviceNodes"] == [{"path": path, "permissions": "rw"} for path in GRANT.nodes]
    assert "CUDA_VISIBLE_DEVICES=MIG-1" in edits["env"]
    assert [mount["containerPath"] for mount in edits["mounts"]] == list(GRANT.folders)


@pytest.mark.parametrize(
    "grant",
    [
        GRANT,
        replace(GRANT, nodes=(), folders=()),
        replace(GRANT, lease="7f-3"),
        replace(GRANT, lease="x_ü/9"),
        replace(GRANT, nodes=("/dev/kfd", "/dev/dri/renderD128")),
    ],
)
def test_every_spec_is_valid(grant):
    spec = spec_of(grant, [("/usr/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1")])

    Draft7Validator.check_schema(SCHEMA)
    assert list(Draft7Validator(SCHEMA).iter_errors(spec)) == []


def test_the_version_is_as_low_as_the_spec_allows():
    assert spec_of(GRANT)["cdiVersion"] == "0.3.0"
    assert spec_of(replace(GRANT, lease="1a"))["cdiVersion"] == "0.5.0"


def test_a_node_appears_inside_under_the_path_that_its_driver_asks_for():
    binds = {"/dev/vdavinci7": "/dev/davinci7", "/etc/vdev/1": "/etc/v/1"}
    lease = replace(GRANT, nodes=("/dev/vdavinci7",), folders=(), binds=binds)

    spec = spec_of(lease)

    edits = spec["devices"][0]["containerEdits"]
    assert edits["deviceNodes"] == [
        {"path": "/dev/davinci7", "hostPath": "/dev/vdavinci7", "permissions": "rw"}
    ]
    assert [(m["hostPath"], m["containerPath"]) for m in edits["mounts"]] == [("/etc/vdev/1", "/etc/v/1")]
    assert spec["cdiVersion"] == "0.5.0"


def test_a_lease_that_cannot_be_a_device_is_refused_before_anything_is_written(engine):
    with pytest.raises(RuntimeRefusedError, match="cannot be the name of a device"):
        engine.specs().open(replace(GRANT, lease="a-"))

    assert engine.files() == []


def test_opening_twice_leaves_the_file_alone(engine):
    engine.specs().open(GRANT)
    (name,) = engine.files()
    before = (engine.folder / name).stat()

    engine.specs().open(GRANT)

    assert (engine.folder / name).stat() == before


def test_a_spec_that_somebody_changed_is_put_right(engine):
    engine.specs().open(GRANT)
    (name,) = engine.files()
    (engine.folder / name).write_text("{}")

    engine.specs().open(GRANT)

    assert engine.spec()["kind"] == "berth.local/lease"


def test_everybody_may_read_a_spec_and_only_root_change_it(engine):
    engine.specs().open(GRANT)

    (name,) = engine.files()
    assert (engine.folder / name).stat().st_mode & 0o777 == 0o644
    assert engine.folder.stat().st_mode & 0o777 == 0o755


def test_a_container_sees_the_notices_of_its_own_lease_and_changes_none(engine, tmp_path):
    own = tmp_path / "notices" / "a1"
    engine.specs().open(replace(GRANT, shown=(str(own),)))

    mounts = engine.spec()["devices"][0]["containerEdits"]["mounts"]
    shown = [mount for mount in mounts if mount["hostPath"] == str(own)]
    assert [mount["containerPath"] for mount in shown] == [str(own)]
    assert "ro" in shown[0]["options"]
    assert not any(mount["hostPath"] == str(own.parent) for mount in mounts)
    assert own.stat().st_mode & 0o777 == 0o711, "an engine mounts nothing that is not there"


def test_a_newer_generation_takes_the_name_over(engine):
    engine.specs().open(GRANT)
    engine.specs().open(replace(GRANT, generation=3, nodes=("/dev/nvidia1",)))

    assert engine.specs().known() == [("a1", 3)]
    assert engine.spec()["devices"][0]["containerEdits"]["deviceNodes"][0]["path"] == "/dev/nvidia1"


def test_a_closed_lease_is_no_device_any_more(engine):
    engine.specs().open(GRANT)

    engine.specs().close(GRANT.key, kill=False)
    engine.specs().close(GRANT.key, kill=False)

    assert engine.files() == []


def test_leftovers_of_an_earlier_boot_go_and_files_of_others_stay(engine):
    engine.specs(boot_id="ffffffff-1111").open(replace(GRANT, lease="old"))
    (engine.folder / "nvidia.yaml").write_text("kind: nvidia.com/gpu")
    (engine.folder / "berth-lease_odd.json").write_text("{}")

    known = engine.specs().known()

    assert known == []
    assert engine.files() == ["berth-lease_odd.json", "nvidia.yaml"]


def test_looking_leaves_the_leftovers_of_an_earlier_boot_to_the_agent(engine):
    engine.specs(boot_id="ffffffff-1111").open(replace(GRANT, lease="old"))
    before = engine.files()

    known = engine.specs(looks_only=True).known()

    assert (known, engine.files()) == ([], before)


def test_a_containers_process_tells_its_lease(engine):
    engine.processes = {7: of_lease()}

    assert engine.specs().lease_of(7) == GRANT.key
    assert engine.specs().pids(GRANT.key) == [7]
    assert engine.specs().pids(("a1", 3)) == []


@pytest.mark.parametrize(
    "cgroup",
    [
        "/user.slice/user-1002.slice/session-3.scope",
        f"/user.slice/user-1002.slice/user@1002.service/user.slice/libpod-{'0a' * 32}.scope",
        f"/berth.slice/berth-lease-b-1.service/{'0a' * 32}",
        "/system.slice/cron.service",
        "/",
    ],
)
def test_a_variable_that_anybody_can_set_proves_nothing_outside_a_container_of_the_host(engine, cgroup):
    engine.processes = {7: of_lease(cgroup)}
    specs = engine.specs()

    specs.close(GRANT.key, kill=True)

    assert specs.lease_of(7) is None
    assert engine.sent == []


@pytest.mark.parametrize(
    "cgroup", [CONTAINER, f"/docker/{'1b' * 32}", f"/machine.slice/libpod-{'2c' * 32}.scope/container"]
)
def test_containers_of_known_engines_are_recognised(cgroup):
    assert is_engines(cgroup)


@pytest.mark.parametrize(
    "environ", [{}, {"BERTH_LEASE": "a1"}, {"BERTH_LEASE": "a1", "BERTH_GENERATION": "x"}]
)
def test_a_container_without_a_lease_belongs_to_nobody(engine, environ):
    engine.processes = {7: (CONTAINER, environ)}

    assert engine.specs().lease_of(7) is None
    assert engine.specs().lease_of(8) is None


def test_containers_of_a_closed_lease_are_asked_to_end_and_then_made_to(engine):
    engine.processes = {7: of_lease(), 8: of_lease(lease="b")}
    specs = engine.specs()
    specs.open(GRANT)

    specs.close(GRANT.key, kill=False)
    specs.close(GRANT.key, kill=True)

    assert engine.sent == [(7, signal.SIGTERM), (7, signal.SIGKILL)]


LDCONFIG = """\
3 libs found in cache `/etc/ld.so.cache'
\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1
\tlibcuda.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so
\tlibnvidia-gpucomp.so.570.86.10 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-gpucomp.so.570.86.10
\tlibz.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libz.so.1
"""


def mounts(text: str, code: int = 0, machine: str = "x86_64") -> list[tuple[str, str]]:
    from nodeagent.runtimes.driver_files import driver_mounts

    shell = SimulatedShell({"ldconfig": lambda argv, stdin, env: Done(code, text, "broken cache")})
    return list(driver_mounts(shell, lambda path: path == "/usr/bin/nvidia-smi", machine=machine))


def test_a_container_sees_the_drivers_own_libraries_of_its_architecture_and_no_others():
    assert mounts(LDCONFIG) == [
        ("/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi"),
        ("/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"),
        (
            "/lib/x86_64-linux-gnu/libnvidia-gpucomp.so.570.86.10",
            "/usr/local/nvidia/lib64/libnvidia-gpucomp.so.570.86.10",
        ),
    ]


def test_a_host_without_the_driver_gives_no_libraries():
    assert mounts("1 libs found\n") == []
    assert mounts(LDCONFIG, machine="riscv64") == []


def test_libraries_that_cannot_be_listed_keep_a_lease_closed_rather_than_unusable(engine):
    def broken() -> list[tuple[str, str]]:
        raise ProgramError("ldconfig is not installed on this host")

    with pytest.raises(RuntimeRefusedError, match="libraries are not known") as no:
        engine.specs(mounts=broken).open(GRANT)

    assert no.value.is_passing
    assert engine.files() == []
    with pytest.raises(ProgramError, match="broken cache"):
        mounts(LDCONFIG, code=1)


def test_other_vendors_leases_ask_for_no_libraries_of_nvidia(engine):
    shell = SimulatedShell()

    engine.specs(mounts=mounts_of(shell, lambda path: False)).open(replace(GRANT, nodes=("/dev/kfd",)))

    assert engine.spec()["devices"][0]["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/kfd", "permissions": "rw"}
    ]


def test_a_host_says_what_it_lacks_for_containers(engine):
    assert "no container engine" in engine.specs(which=lambda name: None).why_not()
    assert "may not write" in engine.specs(is_root=False).why_not()
    assert engine.specs().why_not() == ""


def test_a_folder_that_cannot_be_written_is_a_refusal(tmp_path):
    (tmp_path / "file").write_text("")
    specs = CdiSpecs(tmp_path / "file", boot_id=BOOT, pids=list)

    with pytest.raises(RuntimeRefusedError) as no:
        specs.open(GRANT)
    assert (no.value.word, no.value.is_passing) == ("cdi", True)


def test_the_name_on_the_lease_page_is_the_name_in_the_spec():
    lease = "9c1e/ü"
    spec = spec_of(replace(GRANT, lease=lease))

    assert words_of(lease) == f"{spec['kind']}={spec['devices'][0]['name']}"
