"""A node's key is changed over its connection; every cut leaves a node that can connect, with one key only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeagent.link.enrolment import NodeEnrolment, PortalRefusedError
from nodeagent.link.identity import Identity
from nodeagent.link.key_change import KeyChange
from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.codec import encode
from nodeagent.protocol.messages import Hello, KeyStored, NewKey, Rotate
from portal.agents.keys import ASK_AGAIN_S, KeyRequest, ask_rotation
from portal.agents.services import create_enrol_token, revoke_node
from portal.audit.models import AuditEntry
from portal.common.clock import db_now
from portal.common.errors import Conflict
from portal.fleet.models import Node
from portal.leases.models import LeaseEvent
from tests.portal.builders import World
from tests.telemetry.conftest import live, rows  # noqa: F401
from tests.telemetry.talk import Talk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]


class Door:
    """A node's agent as far as its keys go, at the portal's real socket."""

    def __init__(self, state: Path, token: str = "", features: tuple[str, ...] = ("rotate",)) -> None:
        state.mkdir(exist_ok=True)
        self.identity = Identity("gpu-01", state)
        self.enrolment = NodeEnrolment(self.identity, lambda: token)
        self.change = KeyChange(self.identity)
        self.features = features

    async def enter(self, talk: Talk, *, is_known: bool = True) -> dict[str, Any]:
        """Say hello as the agent would; returns welcome or refusal."""
        nonce = (await talk.hear())["nonce"]
        hello = Hello(
            node="gpu-01", signature="", boot_id="boot-1", agent_version="1", driver="simulated",
            driver_version="1", devices=device_facts("gpu-01", "h100-80gb", 2), last_epoch=1,
            features=self.features, runtime="systemd",
        )  # fmt: skip
        proof = self.enrolment.credentials(nonce, is_known=is_known)
        await talk.say(encode(_with(hello, proof)))
        answer = await talk.hear()
        if answer["type"] == "welcome":
            self.enrolment.accepted()
        else:
            self.enrolment.final(PortalRefusedError(answer["code"], ""), is_known=is_known)
        return answer

    async def offer(self, talk: Talk) -> NewKey:
        """Answer the portal's wish for a new key."""
        heard = await wished(talk)
        answer = self.change.take(Rotate(heard["nonce"]))
        assert answer is not None
        await talk.say(encode(answer))
        return answer


def _with(hello: Hello, proof: dict[str, str]) -> Hello:
    return replace(hello, **proof)  # type: ignore[arg-type]


async def word(talk: Talk) -> dict[str, Any]:
    """Return the next word of the portal that is no desired state: those may come at any time."""
    while (heard := await talk.hear())["type"] == "desired":
        pass
    return heard


async def wished(talk: Talk) -> dict[str, Any]:
    """Return the portal's wish for a new key."""
    heard = await word(talk)
    assert heard["type"] == "rotate", heard
    return heard


async def enrolled(world: World, state: Path, **more: Any) -> Door:
    secret = await rows(lambda: create_enrol_token(node_name="gpu-01", actor=None, now=world.now).secret)
    async with Talk("/agent/v1") as talk:
        answer = await Door(state, secret, **more).enter(talk, is_known=False)
        assert answer["type"] == "welcome", answer
    return Door(state, **more)


async def asked(world: World, state: Path) -> Door:
    """Enrol a node of which an operator wants a new key when it connects."""
    door = await enrolled(world, state)
    await rows(lambda: ask(world))
    return door


def ask(world: World) -> None:
    ask_rotation(node=world.nodes["gpu-01"], actor=world.user("operator"), now=world.now)


def node() -> Node:
    return Node.objects.get(name="gpu-01")


async def test_asked_for_the_key_is_changed_over_the_open_connection_and_leases_notice_nothing(
    world: World, tmp_path: Path
) -> None:
    door = await enrolled(world, tmp_path)
    lease = await rows(lambda: world.active())
    before = await rows(lambda: (node().epoch, LeaseEvent.objects.filter(lease=lease).count()))
    async with Talk("/agent/v1") as talk:
        await door.enter(talk)
        await rows(lambda: ask(world))
        offered = await door.offer(talk)
        stored = await word(talk)
        assert door.change.stored(KeyStored(stored["public_key"]))

    row = await rows(node)
    assert bytes(row.public_key).hex() == offered.public_key == door.identity.public_key()
    assert row.rotate_asked_at is None
    assert row.key_changed_at is not None
    assert before == await rows(lambda: (node().epoch, LeaseEvent.objects.filter(lease=lease).count()))
    actions = await rows(lambda: list(AuditEntry.objects.order_by("id").values_list("action", flat=True)))
    assert actions[-2:] == ["node.key_change_asked", "node.key_changed"]


async def test_a_wish_made_while_the_node_was_away_is_heard_when_it_connects(
    world: World, tmp_path: Path
) -> None:
    door = await asked(world, tmp_path)

    async with Talk("/agent/v1") as talk:
        await door.enter(talk)
        await door.offer(talk)
        assert (await word(talk))["type"] == "keystored"


async def test_the_answer_lost_the_agent_is_refused_once_and_enters_with_the_new_key(
    world: World, tmp_path: Path
) -> None:
    door = await asked(world, tmp_path)
    async with Talk("/agent/v1") as talk:
        await door.enter(talk)
        offered = await door.offer(talk)
        await word(talk)  # the word that it is stored never reaches the key's file

    again = Door(tmp_path)
    answers = []
    for _attempt in range(2):
        async with Talk("/agent/v1") as talk:
            answers.append((await again.enter(talk)).get("code", "in"))

    assert answers == ["bad_signature", "in"]
    assert Identity("gpu-01", tmp_path).public_key() == offered.public_key
    async with Talk("/agent/v1") as talk:
        assert (await Door(tmp_path).enter(talk))["type"] == "welcome"


async def test_the_offer_lost_the_old_key_opens_and_the_portal_asks_again(
    world: World, tmp_path: Path
) -> None:
    door = await asked(world, tmp_path)
    async with Talk("/agent/v1") as talk:
        await door.enter(talk)
        lost = door.change.take(Rotate((await wished(talk))["nonce"]))

    again = Door(tmp_path)
    async with Talk("/agent/v1") as talk:
        assert (await again.enter(talk))["type"] == "welcome"
        assert (await again.offer(talk)).public_key == lost.public_key
        assert (await word(talk))["public_key"] == lost.public_key


async def test_an_offer_signed_for_another_wish_is_refused_and_the_old_key_stays(
    world: World, tmp_path: Path
) -> None:
    door = await asked(world, tmp_path)
    async with Talk("/agent/v1") as talk:
        await door.enter(talk)
        await wished(talk)
        answer = door.change.take(Rotate("cd" * 32))
        await talk.say(encode(answer))
        refusal = await word(talk)

    assert (refusal["type"], refusal["code"]) == ("refused", "bad_new_key")
    row = await rows(node)
    assert bytes(row.public_key).hex() == door.identity.public_key()
    assert row.rotate_asked_at is not None


async def test_a_key_that_nobody_asked_for_is_not_taken(world: World, tmp_path: Path) -> None:
    door = await enrolled(world, tmp_path)
    async with Talk("/agent/v1") as talk:
        await door.enter(talk)
        await talk.say(encode(door.change.take(Rotate("ab" * 32))))

        assert (await word(talk))["code"] == "unexpected"
    assert bytes((await rows(node)).public_key).hex() == door.identity.public_key()


async def test_a_connection_from_before_a_revocation_cannot_bring_a_key(world: World, tmp_path: Path) -> None:
    door = await asked(world, tmp_path)
    async with Talk("/agent/v1") as talk:
        await door.enter(talk)
        wish = await wished(talk)
        await rows(
            lambda: revoke_node(node=world.nodes["gpu-01"], actor=world.user("operator"), now=world.now)
        )
        await talk.say(encode(door.change.take(Rotate(wish["nonce"]))))
        assert (await word(talk))["code"] == "stale_epoch"

    assert (await rows(node)).public_key is None


async def test_two_changes_on_one_connection_are_both_stored(world: World, tmp_path: Path) -> None:
    door = await enrolled(world, tmp_path)
    keys = []
    async with Talk("/agent/v1") as talk:
        await door.enter(talk)
        for _turn in range(2):
            await rows(lambda: ask(world))
            await door.offer(talk)
            stored = (await word(talk))["public_key"]
            assert door.change.stored(KeyStored(stored))
            keys.append(stored)

    assert len(set(keys)) == 2
    assert bytes((await rows(node)).public_key).hex() == keys[1]


async def test_an_agent_too_old_for_it_is_never_asked(world: World, tmp_path: Path) -> None:
    await enrolled(world, tmp_path, features=())

    with pytest.raises(Conflict, match="too old"):
        await rows(lambda: ask(world))
    assert (await rows(node)).rotate_asked_at is None


async def test_enrolling_again_answers_the_wish(world: World, tmp_path: Path) -> None:
    await enrolled(world, tmp_path / "a")
    await rows(lambda: ask(world))

    await enrolled(world, tmp_path / "b")

    row = await rows(node)
    assert row.rotate_asked_at is None
    assert row.key_changed_at == row.enrolled_at


def test_a_wish_is_repeated_only_after_a_while_and_answered_once() -> None:
    wish = KeyRequest()

    first = wish.ask(at=100.0)

    assert first is not None
    assert wish.ask(at=101.0) is None
    assert wish.answered() == first.nonce
    assert wish.answered() == ""
    assert wish.ask(at=101.0) is not None
    assert wish.ask(at=101.0 + ASK_AGAIN_S) is not None


async def test_what_the_hello_says_of_runtime_and_features_is_kept(world: World, tmp_path: Path) -> None:
    await enrolled(world, tmp_path)

    row = await rows(node)

    assert (row.runtime, row.features) == ("systemd", ["rotate"])
    assert row.last_seen_at <= await rows(db_now)
