"""A node's key is changed in steps; wherever they are cut, the node can still connect, and only with one key."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nodeagent.link.enrolment import NodeEnrolment, PortalRefusedError
from nodeagent.link.identity import Identity, StateError
from nodeagent.link.key_change import KeyChange
from nodeagent.protocol.messages import KeyStored, NewKey, Rotate
from nodeagent.protocol.signing import challenge_text, new_key_text

NONCE = "ab" * 32


def opens(public_key: str, proof: dict[str, str]) -> bool:
    """Say what a portal that knows this one key would."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(
            bytes.fromhex(proof["signature"]), challenge_text(NONCE, "gpu-01")
        )
    except InvalidSignature:
        return False
    return True


def tries_until_in(state: Path, stored: str) -> int:
    """Start the agent anew and connect to a portal that knows one key; returns how often it was refused."""
    enrolment = NodeEnrolment(Identity("gpu-01", state), lambda: "")
    for refusals in range(4):
        if opens(stored, enrolment.credentials(NONCE, is_known=True)):
            enrolment.accepted()
            return refusals
        no = PortalRefusedError("bad_signature", "not this key")
        assert enrolment.final(no, is_known=True) is None
    raise AssertionError("the node is locked out")


def offered(identity: Identity) -> NewKey:
    answer = KeyChange(identity).take(Rotate(NONCE))
    assert answer is not None
    return answer


def test_the_next_key_is_proven_by_itself_and_not_in_force_yet(tmp_path):
    identity = Identity("gpu-01", tmp_path)
    first = identity.public_key()

    answer = offered(identity)

    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(answer.public_key))
    key.verify(bytes.fromhex(answer.signature), new_key_text(NONCE, "gpu-01", answer.public_key))
    assert identity.public_key() == first != answer.public_key
    assert stat.S_IMODE((tmp_path / "agent.key.next").stat().st_mode) == 0o600


def test_the_proof_of_a_new_key_answers_no_challenge(tmp_path):
    identity = Identity("gpu-01", tmp_path)
    answer = offered(identity)

    assert not opens(answer.public_key, {"signature": answer.signature})


def test_asked_again_the_same_next_key_is_offered(tmp_path):
    first = offered(Identity("gpu-01", tmp_path)).public_key

    assert offered(Identity("gpu-01", tmp_path)).public_key == first


def test_a_stored_key_takes_the_place_of_the_old_one(tmp_path):
    identity = Identity("gpu-01", tmp_path)
    change = KeyChange(identity)
    answer = offered(identity)

    assert change.pending()
    assert change.stored(KeyStored(answer.public_key))

    assert identity.public_key() == answer.public_key == Identity("gpu-01", tmp_path).public_key()
    assert not change.pending()
    assert not (tmp_path / "agent.key.next").exists()


def test_word_of_another_key_changes_nothing(tmp_path):
    identity = Identity("gpu-01", tmp_path)
    first = identity.public_key()
    offered(identity)

    assert not KeyChange(identity).stored(KeyStored("cd" * 32))

    assert identity.public_key() == first
    assert identity.has_next


def test_cut_before_the_next_key_was_made_the_old_one_opens(tmp_path):
    stored = Identity("gpu-01", tmp_path).public_key()
    (tmp_path / "agent.key.new").write_text("half a ke")

    assert tries_until_in(tmp_path, stored) == 0


def test_cut_before_the_portal_stored_it_the_old_one_opens_at_once(tmp_path):
    identity = Identity("gpu-01", tmp_path)
    stored = identity.public_key()
    offered(identity)

    assert tries_until_in(tmp_path, stored) == 0
    assert tries_until_in(tmp_path, stored) == 0, "the next key waits until it is asked for again"


def test_cut_after_the_portal_stored_it_the_next_one_opens_after_one_refusal_and_at_once_from_then_on(
    tmp_path,
):
    stored = offered(Identity("gpu-01", tmp_path)).public_key

    assert tries_until_in(tmp_path, stored) == 1
    assert tries_until_in(tmp_path, stored) == 0
    assert not (tmp_path / "agent.key.next").exists()


def test_cut_after_the_rename_the_new_one_opens(tmp_path):
    identity = Identity("gpu-01", tmp_path)
    stored = offered(identity).public_key
    (tmp_path / "agent.key.next").replace(tmp_path / "agent.key")

    assert tries_until_in(tmp_path, stored) == 0


def test_a_torn_next_key_is_passed_over_and_made_anew_when_asked_for(tmp_path):
    stored = Identity("gpu-01", tmp_path).public_key()
    (tmp_path / "agent.key.next").write_text("")

    assert tries_until_in(tmp_path, stored) == 0
    assert len(offered(Identity("gpu-01", tmp_path)).public_key) == 64


def test_a_full_disk_leaves_the_key_in_force_and_says_so(tmp_path, monkeypatch, caplog):
    identity = Identity("gpu-01", tmp_path)
    first = identity.public_key()
    monkeypatch.setattr(os, "fsync", _no_space)

    assert KeyChange(identity).take(Rotate(NONCE)) is None

    assert identity.public_key() == first
    assert not identity.has_next
    assert "No space left" in caplog.text


def test_a_rename_that_fails_keeps_both_keys_and_the_node_gets_in(tmp_path, monkeypatch, caplog):
    identity = Identity("gpu-01", tmp_path)
    stored = offered(identity).public_key
    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", _no_space)
        assert not KeyChange(identity).stored(KeyStored(stored))
        assert "not in its place" in caplog.text
        with pytest.raises(StateError):
            identity.adopt(stored)

    assert tries_until_in(tmp_path, stored) == 1


def test_a_token_comes_after_both_keys_and_enrolment_drops_the_next_one(tmp_path):
    identity = Identity("gpu-01", tmp_path)
    offered(identity)
    enrolment = NodeEnrolment(identity, lambda: "fresh")
    shown = []
    for _ in range(3):
        proof = enrolment.credentials(NONCE, is_known=True)
        shown.append(proof.get("enrol_token", ""))
        enrolment.final(PortalRefusedError("bad_signature", ""), is_known=True)

    enrolment.credentials(NONCE, is_known=True)
    enrolment.final(PortalRefusedError("bad_signature", ""), is_known=True)
    enrolment.credentials(NONCE, is_known=True)
    enrolment.final(PortalRefusedError("bad_signature", ""), is_known=True)
    enrolment.credentials(NONCE, is_known=True)
    enrolment.accepted()

    assert shown == ["", "", "fresh"]
    assert not identity.has_next


def _no_space(*_args: object) -> None:
    raise OSError(28, "No space left on device")
