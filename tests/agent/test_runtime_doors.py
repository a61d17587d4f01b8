"""Which way in a host has, several at once, and the one that isolates nothing."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from nodeagent.host.accounts import Account
from nodeagent.runtimes.base import Key, LeaseEntrance, LeaseGrant, RuntimeRefusedError
from nodeagent.runtimes.choice import CombinedRuntime, RuntimeMissingError, choose, pick, shows_files
from nodeagent.runtimes.plain import PlainRuntime
from nodeagent.simulation.machine.world import SimulatedShell

GRANT = LeaseGrant(
    lease="a",
    generation=1,
    user="alice",
    team="vision",
    env={"CUDA_VISIBLE_DEVICES": "MIG-1", "BERTH_NOTICE": "it's $HOME; `id`"},
    nodes=("/dev/nvidia0",),
    ends_in_s=600,
    grace_s=30,
)


@dataclass
class Door:
    name: str
    missing: str = ""
    is_isolating: bool = False
    refuses: str = ""
    words: dict[str, str] = field(default_factory=dict)
    inside: dict[int, Key] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def open(self, grant: LeaseGrant) -> LeaseEntrance:
        self.calls.append("open")
        if self.refuses:
            raise RuntimeRefusedError(self.refuses, f"cannot write {grant.lease}.json: no ldconfig")
        if grant.key not in self.inside.values():
            self.inside[len(self.inside) + 1] = grant.key
        return LeaseEntrance({"runtime": self.name, "isolated": "no", **self.words}, f"/{self.name}")

    def would_refuse(self, grant: LeaseGrant) -> RuntimeRefusedError | None:
        return RuntimeRefusedError(self.refuses, "not now") if self.refuses else None

    def close(self, key: Key, *, kill: bool) -> None:
        self.calls.append("kill" if kill else "close")
        if self.refuses:
            raise RuntimeRefusedError(self.refuses, "not now")

    def pids(self, key: Key) -> list[int]:
        return [pid for pid, owner in self.inside.items() if owner == key]

    def known(self) -> list[Key]:
        return sorted(set(self.inside.values()))

    def whole(self) -> list[Key]:
        return self.known()

    def lease_of(self, pid: int) -> Key | None:
        return self.inside.get(pid)

    def why_not(self) -> str:
        return self.missing


def test_two_doors_make_one_entrance_and_the_strictest_decides_what_isolates():
    units = Door("systemd", is_isolating=True, words={"unit": "u"}, inside={1: ("a", 1)})
    boxes = Door("cdi", words={"cdi": "berth.local/lease=a"}, inside={2: ("a", 1), 3: ("b", 1)})
    doors = CombinedRuntime([units, boxes])

    entrance = doors.open(GRANT)

    assert entrance == LeaseEntrance(
        {"runtime": "systemd+cdi", "unit": "u", "cdi": "berth.local/lease=a", "isolated": "yes"}, "/systemd"
    )
    assert doors.pids(("a", 1)) == [1, 2]
    assert doors.known() == [("a", 1), ("b", 1)]
    assert doors.whole() == [("a", 1)]
    assert (doors.lease_of(3), doors.lease_of(9)) == (("b", 1), None)


def test_a_door_that_sticks_keeps_no_other_open():
    units, boxes = Door("systemd"), Door("cdi", refuses="cdi")

    with pytest.raises(RuntimeRefusedError):
        CombinedRuntime([units, boxes]).close(("a", 1), kill=True)

    assert (units.calls, boxes.calls) == (["kill"], ["kill"])


def test_an_extra_door_that_refuses_keeps_nobody_out_of_the_first(caplog):
    units, boxes = Door("systemd", is_isolating=True, words={"unit": "u"}), Door("cdi", refuses="cdi")
    doors = CombinedRuntime([units, boxes])

    entrance = doors.open(GRANT)

    assert entrance == LeaseEntrance({"runtime": "systemd", "unit": "u", "isolated": "yes"}, "/systemd")
    assert doors.would_refuse(GRANT) is None
    assert doors.whole() == [GRANT.key], "it is not opened again and again for a door that refuses"
    doors.open(GRANT)
    doors.open(replace(GRANT, lease="b"))
    assert [record.getMessage() for record in caplog.records if "cdi is left out" in record.getMessage()] == [
        "cdi is left out of lease a and of others like it: cdi: cannot write a.json: no ldconfig"
    ]


def test_an_extra_door_that_works_again_is_opened_with_the_lease_and_missed_from_then_on():
    units, boxes = Door("systemd", is_isolating=True), Door("cdi", refuses="cdi", words={"cdi": "x"})
    doors = CombinedRuntime([units, boxes])
    doors.open(GRANT)
    boxes.refuses = ""

    assert doors.open(GRANT).words["runtime"] == "systemd+cdi"
    boxes.inside.clear()
    assert doors.whole() == []


def test_the_first_door_decides():
    units, boxes = Door("systemd", refuses="no_account"), Door("cdi")
    doors = CombinedRuntime([units, boxes])

    with pytest.raises(RuntimeRefusedError, match="no_account"):
        doors.open(GRANT)

    assert boxes.calls == []
    refusal = doors.would_refuse(GRANT)
    assert refusal is not None
    assert refusal.word == "no_account"


@pytest.mark.parametrize(
    ("name", "no_units", "no_containers", "expected"),
    [
        ("auto", "", "", "systemd+cdi"),
        ("auto", "", "no engine", "systemd"),
        ("auto", "no systemd", "", "cdi+plain"),
        ("auto", "no systemd", "no engine", "plain"),
        ("systemd", "", "", "systemd"),
        ("cdi", "", "", "cdi+plain"),
        ("plain", "", "", "plain"),
    ],
)
def test_a_host_gets_the_strictest_way_in_that_it_has(name, no_units, no_containers, expected):
    chosen = pick(name, Door("systemd", no_units, True), Door("cdi", no_containers), Door("plain"))

    assert chosen.name == expected
    assert chosen.is_isolating is expected.startswith("systemd")


@pytest.mark.parametrize(("name", "sentence"), [("systemd", "not started by it"), ("cdi", "no engine")])
def test_a_way_in_that_was_named_is_never_replaced_in_silence(name, sentence):
    with pytest.raises(RuntimeMissingError, match=sentence):
        pick(name, Door("systemd", "not started by it"), Door("cdi", "no engine"), Door("plain"))


@pytest.mark.parametrize(
    ("name", "no_units", "no_containers", "expected"),
    [
        ("auto", "no systemd", "", True),
        ("cdi", "", "", True),
        ("auto", "", "", False),
        ("auto", "", "no engine", False),
        ("plain", "", "", False),
    ],
)
def test_files_under_another_path_are_shown_where_containers_are_the_way_in(
    name, no_units, no_containers, expected
):
    doors = pick(name, Door("systemd", no_units), Door("cdi", no_containers), Door("plain"))

    assert shows_files(doors) is expected


def test_the_host_itself_is_asked(tmp_path):
    facts = {"run_dir": tmp_path, "boot_id": "b", "cdi_folder": tmp_path / "cdi", "account": me}

    chosen = choose("plain", SimulatedShell(), **facts)

    assert chosen.open(GRANT).words["isolated"] == "no"
    with pytest.raises(RuntimeMissingError, match=r"units on this host"):
        choose("systemd", SimulatedShell(), read=lambda path: "bash\n", **facts)
    with pytest.raises(ValueError, match="choose one of auto"):
        choose("docker", SimulatedShell(), **facts)


@pytest.fixture
def plain(tmp_path: Path) -> PlainRuntime:
    return PlainRuntime(tmp_path, account=me, is_root=True)


def me(name: str) -> Account:
    if name != "alice":
        raise LookupError(f"this host has no account {name!r}")
    return Account(os.getuid(), os.getgid(), "/home/alice", "alice")


def test_a_plain_lease_is_a_file_of_variables_for_its_holder_alone(plain):
    entrance = plain.open(GRANT)

    path = Path(entrance.words["env_file"])
    assert entrance.words == {"runtime": "plain", "isolated": "no", "env_file": str(path)}
    assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o600, os.getuid())
    assert path.parent.stat().st_mode & 0o777 == 0o711


def test_any_value_survives_the_holders_shell(plain):
    path = plain.open(GRANT).words["env_file"]

    said = subprocess.run(
        ["sh", "-c", f'. {path}; printf "%s" "$BERTH_NOTICE"'], capture_output=True, text=True, check=True
    )

    assert said.stdout == GRANT.env["BERTH_NOTICE"]


def test_a_plain_lease_is_put_right_and_otherwise_left_alone(plain):
    path = Path(plain.open(GRANT).words["env_file"])
    before = path.stat()
    plain.open(GRANT)
    same = path.stat()
    path.chmod(0o644)
    plain.open(GRANT)

    assert (same.st_ino, same.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert path.stat().st_mode & 0o777 == 0o600


def test_nobody_is_guessed_to_be_in_a_plain_lease(plain):
    plain.open(GRANT)

    assert plain.known() == [GRANT.key]
    assert (plain.pids(GRANT.key), plain.lease_of(os.getpid())) == ([], None)
    plain.close(GRANT.key, kill=True)
    plain.close(GRANT.key, kill=True)
    assert plain.known() == []


def test_a_plain_lease_for_nobody_is_refused(plain, tmp_path):
    with pytest.raises(RuntimeRefusedError, match="no account 'bob'"):
        plain.open(replace(GRANT, user="bob"))

    assert plain.known() == []


def test_a_folder_that_cannot_be_made_is_a_refusal(tmp_path):
    (tmp_path / "leases").write_text("")

    with pytest.raises(RuntimeRefusedError) as no:
        PlainRuntime(tmp_path, is_root=False).open(GRANT)
    assert no.value.word == "plain"
