from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from portal.accounts import ssh_keys
from portal.accounts.models import SshKey
from portal.audit.models import AuditEntry
from portal.common.errors import Invalid
from tests.api.routes import FORMER_KEY, PUBLIC_KEY
from tests.portal.builders import World
from tests.web.conftest import SignedIn


def rsa_line(bits: int) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=bits).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def test_a_key_is_added_listed_and_removed(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")

    assert bob.post("/ssh-keys/", {"key": PUBLIC_KEY}).status_code == 302
    row = SshKey.objects.get(user=world.user("bob"))
    shown = bob.get("/ssh-keys/").text

    assert row.name == "bob@laptop"
    assert row.public_key == PUBLIC_KEY.removesuffix(" bob@laptop")
    assert row.fingerprint in shown
    assert ssh_keys.keys_of(row.user_id) == [row.public_key]
    assert bob.post(f"/ssh-keys/{row.pk}/remove/").status_code == 302
    assert not SshKey.objects.exists()
    said = list(AuditEntry.objects.filter(action__startswith="ssh_key").values_list("action", flat=True))
    assert sorted(said) == ["ssh_key.added", "ssh_key.removed"]


def test_the_same_key_twice_is_one(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")
    bob.post("/ssh-keys/", {"key": PUBLIC_KEY, "name": "laptop"})

    assert bob.post("/ssh-keys/", {"key": PUBLIC_KEY + " again"}).status_code == 302

    assert [row.name for row in SshKey.objects.all()] == ["laptop"]
    assert AuditEntry.objects.filter(action="ssh_key.added").count() == 1


def test_charlie_meets_another_persons_key_like_a_missing_one(world: World, signed_in: SignedIn) -> None:
    signed_in("bob").post("/ssh-keys/", {"key": PUBLIC_KEY})
    row = SshKey.objects.get()
    charlie = signed_in("charlie")

    assert charlie.post(f"/ssh-keys/{row.pk}/remove/").status_code == 404
    assert row.fingerprint not in charlie.get("/ssh-keys/").text
    assert SshKey.objects.filter(pk=row.pk).exists()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "Paste one line"),
        ("hello", "Paste one line"),
        ("ssh-dss AAAAB3NzaC1kc3M= me", "Paste one line"),
        (f"{PUBLIC_KEY}\n{FORMER_KEY}", "Paste one line"),
        (f'command="rm -rf /" {PUBLIC_KEY}', "Paste one line"),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILPx me", "cannot be read"),
        ("ssh-ed25519 %%%% me", "cannot be read"),
        (PUBLIC_KEY.replace("ssh-ed25519", "ssh-rsa"), "cannot be read"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "private key"),
        (rsa_line(1024), "2048 bits"),
    ],
)
def test_a_line_that_is_no_good_key_is_refused_with_a_sentence(line: str, sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        ssh_keys.read_public_key(line)

    assert sentence in refused.value.fields["key"]


def test_a_large_rsa_key_is_taken() -> None:
    assert ssh_keys.read_public_key(rsa_line(2048)).fingerprint.startswith("SHA256:")


def test_a_page_says_what_is_wrong_with_a_key(world: World, signed_in: SignedIn) -> None:
    answer = signed_in("bob").post("/ssh-keys/", {"key": "hello"})

    assert answer.status_code == 422
    assert "field-error" in answer.text
    assert not SshKey.objects.exists()


def test_one_person_has_at_most_twenty_keys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_keys, "MOST_KEYS", 1)
    bob = world.user("bob")
    ssh_keys.add_key(bob, name="", line=PUBLIC_KEY, now=world.now)

    with pytest.raises(Invalid) as refused:
        ssh_keys.add_key(bob, name="", line=FORMER_KEY, now=world.now)

    assert "Remove one first" in refused.value.fields["key"]
