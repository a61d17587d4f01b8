"""Whoever answers in the portal's place without its key is not obeyed, whatever it sends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nodeagent.link.enrolment import PortalRefusedError
from nodeagent.link.handshake import require_epoch, require_portal
from nodeagent.link.identity import Identity, StateError
from nodeagent.protocol.codec import encode
from nodeagent.protocol.messages import Desired, Hello, Report, Welcome
from nodeagent.reconcile.goals import FenceError, require_current
from nodeagent.reconcile.ledger import Ledger
from tests.agent.builder import lease
from tests.agent.fake_portal import FakePortal, listening
from tests.agent.test_agent import build, running, slice_at

NONCE, OWN = "ab" * 32, "cd" * 32


@pytest.fixture
def portal() -> FakePortal:
    return FakePortal()


class Rogue(FakePortal):
    """A portal that knows the node, lets everybody in and would end all leases with one empty frame."""

    def _judge(self, hello: Hello, nonce: str) -> None:
        self.key, self.epoch = self.key or OWN, 1

    async def _greet(self, socket) -> None:
        await super()._greet(socket)
        await socket.send(encode(Desired("gpu-01", self.epoch, 2**53 - 1, ())))


async def ready(portal: FakePortal, tmp_path, token: str) -> None:
    async with listening(portal) as port, running(build(tmp_path, port, token=token)):
        await portal.kind(Report)
        await portal.desire(lease("a", slice_at(0)))
        await portal.phase("a", "ready")


@pytest.mark.parametrize("is_named", [True, False], ids=["key in the token", "trusted on first use"])
async def test_an_empty_frame_of_a_portal_without_the_key_ends_no_lease(portal, tmp_path, is_named):
    await ready(portal, tmp_path, f"once.{portal.public_key}" if is_named else "once")
    rogue = Rogue()

    async with listening(rogue) as port, running(agent := build(tmp_path, port)):
        while len(rogue.hellos) < 2:
            await asyncio.sleep(0.01)
        phases = [work.phase for work in agent._worker.reconciler.lease_records.values()]

    assert phases == ["ready"]
    assert not [m for m in rogue.heard if isinstance(m, Report)]

    async with listening(portal) as port, running(build(tmp_path, port)):
        portal.forget()
        await portal.phase("a", "ready")


async def test_a_token_that_names_another_portal_enrols_at_no_rogue(tmp_path):
    rogue, real = Rogue("once"), FakePortal("once")

    async with listening(rogue) as port:
        with pytest.raises(PortalRefusedError, match="other_portal"):
            await build(tmp_path, port, token=f"once.{real.public_key}").run()

    assert Identity("gpu-01", tmp_path).portal_key == ""


def greeting(portal: FakePortal, identity: Identity, **changed) -> tuple[Welcome, Hello]:
    hello = Hello(
        "gpu-01", "", "boot-1", "1", "simulated", "1", (), nonce=OWN, portal_key=identity.portal_key
    )
    portal.key, portal.epoch = identity.public_key(), 3
    return replace(portal._welcome(hello, NONCE), **changed), hello


def test_the_proof_is_of_this_greeting_alone(portal, tmp_path):
    identity = Identity("gpu-01", tmp_path)
    welcome, hello = greeting(portal, identity)
    own = identity.public_key()
    require_portal(welcome, hello, NONCE, own, identity)
    hello = replace(hello, portal_key=identity.portal_key)

    for other, nonce, key in (
        (replace(welcome, epoch=4), NONCE, own),
        (welcome, "ef" * 32, own),
        (welcome, NONCE, "12" * 32),
        (replace(welcome, proofs={}), NONCE, own),
        (replace(welcome, portal_key="nonsense"), NONCE, own),
    ):
        with pytest.raises(PortalRefusedError, match="other_portal"):
            require_portal(other, hello, nonce, key, identity)
    with pytest.raises(PortalRefusedError, match="other_portal"):
        require_portal(welcome, replace(hello, nonce="34" * 32), NONCE, own, identity)


def test_a_portal_that_signs_with_its_former_key_too_is_followed_to_its_new_one(portal, tmp_path):
    identity, newer = Identity("gpu-01", tmp_path), FakePortal()
    identity.pin_portal(portal.public_key)
    welcome, hello = greeting(newer, identity)
    with pytest.raises(PortalRefusedError):
        require_portal(welcome, hello, NONCE, identity.public_key(), identity)

    portal.own_key, signed_by = newer.own_key, portal.own_key
    text_proof = {portal.public_key: _sign(signed_by, welcome, hello, identity)}
    require_portal(
        replace(welcome, proofs=welcome.proofs | text_proof), hello, NONCE, identity.public_key(), identity
    )

    assert Identity("gpu-01", tmp_path).portal_key == newer.public_key


def _sign(key, welcome: Welcome, hello: Hello, identity: Identity) -> str:
    from nodeagent.protocol.signing import portal_text

    text = portal_text(
        nonce=NONCE, agent_nonce=hello.nonce, node="gpu-01", public_key=identity.public_key(),
        epoch=welcome.epoch, portal_key=welcome.portal_key,
    )  # fmt: skip
    return key.sign(text).hex()


def test_a_damaged_note_of_the_portals_key_is_no_reason_to_trust_the_next_one(tmp_path):
    Identity("gpu-01", tmp_path).pin_portal(OWN)
    (tmp_path / "portal.key").write_text("half")

    with pytest.raises(StateError, match="portal's key"):
        Identity("gpu-01", tmp_path)


@pytest.mark.parametrize(("known", "said"), [(0, 2**53 - 1), (7, 2**53 - 1), (7, 7 + 10_000_001)])
def test_a_revision_that_would_leave_nothing_above_it_is_refused(known, said):
    with pytest.raises(FenceError, match="far_revision"):
        require_current(Desired("gpu-01", 1, said, ()), node="gpu-01", epoch=1, revision=known)
    require_current(Desired("gpu-01", 1, known + 10_000_000, ()), node="gpu-01", epoch=1, revision=known)


def test_an_epoch_far_above_is_only_taken_from_an_enrolment():
    far = Welcome("gpu-01", 2**31 - 1, 1, 1)

    with pytest.raises(PortalRefusedError, match="far_epoch"):
        require_epoch(far, 3, enrolled=False)
    require_epoch(far, 3, enrolled=True)
    require_epoch(replace(far, epoch=4), 3, enrolled=False)


def test_an_enrolment_counts_revisions_afresh_also_where_the_epoch_is_the_same(tmp_path):
    from nodeagent.reconcile.journal import Journal

    ledger = Ledger(Journal(tmp_path / "journal.jsonl"), "boot-1", "1")
    ledger.meet(3)
    ledger.take([], [], 3, 500)
    ledger.meet(3, enrolled=True)

    assert (ledger.epoch, ledger.revision) == (3, 0)
