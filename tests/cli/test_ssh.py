from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection

from nodeagent.protocol.messages import STREAMS
from portal.accounts.models import SshKey
from portal.cli import ssh
from portal.fleet.models import Node
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from tests.api.routes import FORMER_KEY, PUBLIC_KEY
from tests.cli.conftest import Berth
from tests.portal.builders import World


@pytest.fixture
def own_key(home: Path) -> Path:
    """The key that ssh-keygen would have made."""
    folder = home / ".ssh"
    folder.mkdir()
    (folder / "berth_ed25519").write_text("secret")
    (folder / "berth_ed25519.pub").write_text(PUBLIC_KEY + "\n")
    return folder


def reachable(world: World, settings: Any, state: str = LeaseState.ACTIVE) -> Lease:
    """Return a lease of bob's on a node that serves streams."""
    settings.GATEWAYS = [":1"]
    lease = world.active("bob")
    Node.objects.filter(pk=lease.node_id).update(features=[STREAMS])
    with connection.cursor() as cursor:  # whatever way leads there
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("UPDATE leases_lease SET state = %s WHERE id = %s", [state, lease.pk])
        cursor.execute("SET session_replication_role = origin")
    return lease


def test_keys_are_added_listed_and_removed(berth: Berth, home: Path) -> None:
    (home / "id.pub").write_text(PUBLIC_KEY + "\n")

    assert "Added bob@laptop, SHA256:" in berth("ssh-key", "add", str(home / "id.pub")).stderr
    assert berth("ssh-key", "add", "-", "--name", "old", typed=FORMER_KEY).exit_code == 0
    shown = berth("ssh-key", "list").stdout
    assert "bob@laptop" in shown
    assert "old" in shown
    assert berth("ssh-key", "remove", str(SshKey.objects.get(name="old").pk)).exit_code == 0
    assert SshKey.objects.get().name == "bob@laptop"


def test_a_private_key_is_not_taken(berth: Berth) -> None:
    refused = berth("ssh-key", "add", "-", typed="-----BEGIN OPENSSH PRIVATE KEY-----\n")

    assert refused.exit_code == 1
    assert "never give it away" in refused.stderr


def test_the_settings_are_written_once_and_included_at_the_top(
    berth: Berth, world: World, own_key: Path
) -> None:
    lease = world.active("bob")
    (own_key / "config").write_text("Host work\n  User me\n")

    assert berth("ssh-config", "--write").exit_code == 0
    assert berth("ssh-config", "--write").exit_code == 0

    config = (own_key / "config").read_text()
    assert config == "Include berth_config\n\nHost work\n  User me\n"
    ours = own_key / "berth_config"
    assert f"Host {lease.uid}.berth\n" in ours.read_text()
    assert "ssh-proxy %h" in ours.read_text()
    assert stat.S_IMODE(ours.stat().st_mode) == 0o600
    assert SshKey.objects.get().user == world.user("bob")
    if program := shutil.which("ssh"):
        read = subprocess.run(
            [program, "-F", str(ours), "-G", f"{lease.uid}.berth"], capture_output=True, text=True, check=True
        )
        assert f"ssh-proxy {lease.uid}.berth" in read.stdout or "ssh-proxy %h" in read.stdout
        assert "stricthostkeychecking true" in read.stdout


def test_ssh_is_called_for_the_lease_with_what_is_said_behind_it(
    berth: Berth, world: World, own_key: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    lease = reachable(world, settings)
    called: list[list[str]] = []

    def call(words: list[str]) -> int:
        called.append(words)
        return 7

    monkeypatch.setattr(ssh, "subprocess", SimpleNamespace(call=call))
    monkeypatch.setattr(ssh.shutil, "which", lambda name: f"/usr/bin/{name}")

    done = berth("ssh", lease.uid, "-L", "8080:localhost:80", "nvidia-smi", "-L")

    assert done.exit_code == 7
    assert called[0][-5:] == [f"{lease.uid}.berth", "-L", "8080:localhost:80", "nvidia-smi", "-L"]


@pytest.mark.parametrize(
    ("state", "who", "said"),
    [
        (LeaseState.ENDED, "bob", "The lease is over"),
        (LeaseState.PREPARING, "bob", "not active yet"),
        (LeaseState.INTERRUPTED, "bob", "is silent"),
        (LeaseState.ACTIVE, "alice", "Only its holder"),
    ],
)
def test_ssh_is_not_even_called_where_it_would_be_refused(
    berth: Berth,
    world: World,
    own_key: Path,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    state,
    who,
    said,
) -> None:
    lease = reachable(world, settings, state)
    monkeypatch.setattr(ssh.subprocess, "call", lambda words: pytest.fail(str(words)))
    monkeypatch.setattr(ssh.shutil, "which", lambda name: f"/usr/bin/{name}")

    refused = berth("ssh", lease.uid, who=who)

    assert refused.exit_code == 1
    assert said in refused.stderr


def test_every_end_that_a_gateway_tells_is_a_sentence_with_what_to_do() -> None:
    told = {
        "lease_over", "signed_out", "not_allowed", "not_open_here", "node_away", "no_ssh", "no_keys", "bad_ticket",
        "too_many_sessions", "unavailable", "agent_stopped",
    }  # fmt: skip

    assert told == set(ssh.REASONS)
    assert all(sentence.count(". ") for sentence in ssh.REASONS.values())


def test_a_servers_key_replaces_the_former_one(home: Path) -> None:
    for key in ("ssh-ed25519 AAAA", "ssh-ed25519 BBBB"):
        ssh._remember("lse-1", key)
    ssh._remember("lse-2", "ssh-ed25519 CCCC")

    known = (home / ".ssh" / "berth_known_hosts").read_text()
    assert known == "lse-1.berth ssh-ed25519 BBBB\nlse-2.berth ssh-ed25519 CCCC\n"


def test_somebody_elses_lease_looks_like_a_missing_one(berth: Berth, world: World) -> None:
    lease = world.active("bob")

    refused: Any = berth("ssh-proxy", f"{lease.uid}.berth", who="charlie")

    assert refused.exit_code == 1
    assert "There is nothing here" in refused.stderr
