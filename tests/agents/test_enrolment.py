from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pytest_django import DjangoAssertNumQueries

from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.messages import Hello
from nodeagent.protocol.signing import challenge_text
from portal.agents import consumers, reports
from portal.agents.admission import admit
from portal.agents.errors import AgentRefused
from portal.agents.handshake import Handshake
from portal.agents.models import EnrolToken
from portal.agents.services import create_enrol_token, revoke_node
from portal.common.errors import Invalid
from portal.fleet.models import Device, Node
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
NONCE = "ab" * 32


class Key:
    """A node's key pair."""

    def __init__(self) -> None:
        self.private = Ed25519PrivateKey.generate()
        self.public = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def hello(
        self, node: str = "gpu-09", nonce: str = NONCE, token: str = "", *, last_epoch: int | None = None
    ) -> Hello:
        """Return its hello; a node that the world does not have yet is enrolled by an agent without a past."""
        if last_epoch is None:
            last_epoch = 0 if token and node == "gpu-09" else 1
        return Hello(
            node=node,
            signature=self.private.sign(challenge_text(nonce, node)).hex(),
            boot_id="boot-1",
            agent_version="0.1.0",
            driver="simulated",
            driver_version="1",
            devices=device_facts(node, "l40s-48gb", 2),
            public_key=self.public if token else "",
            enrol_token=token,
            last_epoch=last_epoch,
        )


def token(world: World, node: str = "gpu-09") -> str:
    return create_enrol_token(node_name=node, actor=world.user("operator"), now=world.now).secret


def refused(hello: Hello, world: World, nonce: str = NONCE, later: timedelta = timedelta(0)) -> str:
    with pytest.raises(AgentRefused) as error:
        admit(hello, nonce=nonce, now=world.now + later)
    return error.value.code


def answer(hello: Hello, world: World) -> tuple[str, str]:
    with pytest.raises(AgentRefused) as error:
        admit(hello, nonce=NONCE, now=world.now)
    return error.value.code, error.value.detail


def test_a_token_introduces_a_key_once_and_the_key_serves_from_then_on(world: World) -> None:
    key, secret = Key(), token(world)

    first = admit(key.hello(token=secret), nonce=NONCE, now=world.now)
    again = admit(key.hello(), nonce=NONCE, now=world.now)

    assert (first.epoch, again.epoch) == (1, 1)
    assert Device.objects.filter(node__name="gpu-09").count() == 2
    assert refused(Key().hello(token=secret), world) == "bad_token"


def test_a_token_ends_after_fifteen_minutes(world: World) -> None:
    secret = token(world)

    assert refused(Key().hello(token=secret), world, later=timedelta(minutes=16)) == "bad_token"


def test_a_token_of_one_node_does_not_enrol_another(world: World) -> None:
    secret = token(world, "gpu-09")
    token(world, "gpu-10")

    assert refused(Key().hello("gpu-10", token=secret), world) == "bad_token"


def test_a_signature_over_another_challenge_is_refused(world: World) -> None:
    key, secret = Key(), token(world)
    admit(key.hello(token=secret), nonce=NONCE, now=world.now)

    assert refused(key.hello(nonce="cd" * 32), world) == "bad_signature"


def test_another_key_is_refused(world: World) -> None:
    admit(Key().hello(token=token(world)), nonce=NONCE, now=world.now)

    assert refused(Key().hello(), world) == "bad_signature"


def test_an_unknown_node_one_without_a_key_and_another_key_are_answered_alike(world: World) -> None:
    token(world)
    without = answer(Key().hello(), world)
    admit(Key().hello(token=token(world)), nonce=NONCE, now=world.now)

    assert without == answer(Key().hello("gpu-77"), world) == answer(Key().hello(), world)
    assert without[0] == "bad_signature"
    assert "enrolment token" in without[1]
    assert answer(Key().hello("gpu-77", token="enr_x"), world) == answer(Key().hello(token="enr_x"), world)


def test_a_signature_is_checked_before_any_row_is_locked(
    world: World, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    admit(Key().hello(token=token(world)), nonce=NONCE, now=world.now)

    with django_assert_num_queries(1) as asked:
        refused(Key().hello(), world)

    assert "UPDATE" not in asked.captured_queries[0]["sql"]


def test_a_hello_whose_connection_is_over_before_it_is_stored_changes_nothing(world: World) -> None:
    hello, handshake = Key().hello(token=token(world)), Handshake()
    assert handshake.end()

    with pytest.raises(AgentRefused, match="too_late"):
        admit(hello, nonce=NONCE, now=world.now, handshake=handshake)

    node = Node.objects.get(name="gpu-09")
    assert (node.public_key, node.epoch, node.devices.count()) == (None, 0, 0)
    assert admit(hello, nonce=NONCE, now=world.now).epoch == 1, "the token is still good"


def test_who_was_let_in_is_not_told_that_it_came_too_late() -> None:
    handshake = Handshake()

    assert handshake.admit()
    assert handshake.admit(), "a repeated transaction asks again"
    assert not handshake.end()


def test_a_node_is_not_online_by_its_hello_alone(world: World) -> None:
    admit(Key().hello(token=token(world)), nonce=NONCE, now=world.now)

    assert Node.objects.get(name="gpu-09").last_seen_at is None


def test_a_revoked_node_is_refused_and_its_epoch_rises(world: World) -> None:
    key = Key()
    admit(key.hello(token=token(world)), nonce=NONCE, now=world.now)
    node = Node.objects.get(name="gpu-09")

    revoke_node(node=node, actor=world.user("operator"), now=world.now)

    assert refused(key.hello(), world) == "bad_signature"
    assert Node.objects.get(name="gpu-09").epoch == 2


def test_a_node_cannot_claim_another_nodes_device(world: World) -> None:
    key = Key()
    hello = key.hello(token=token(world))
    stolen = replace(hello.devices[0], uuid=Device.objects.filter(node__name="gpu-01").first().uuid)

    admit(replace(hello, devices=(stolen,)), nonce=NONCE, now=world.now)

    assert Device.objects.get(uuid=stolen.uuid).node.name == "gpu-01"


def test_a_device_that_is_not_reported_any_more_is_missing_and_not_forgotten(world: World) -> None:
    key = Key()
    hello = key.hello(token=token(world))
    admit(hello, nonce=NONCE, now=world.now)

    admit(replace(key.hello(), devices=hello.devices[:1]), nonce=NONCE, now=world.now)

    assert Device.objects.get(uuid=hello.devices[1].uuid).health == "missing"


def test_only_a_digest_of_the_token_is_stored(world: World) -> None:
    secret = token(world)

    assert secret.encode() not in bytes(EnrolToken.objects.get().digest)


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 61, "gpu_ü"])
def test_a_node_name_that_cannot_be_used_is_refused(world: World, name: str) -> None:
    with pytest.raises(Invalid):
        create_enrol_token(node_name=name, actor=world.user("operator"), now=world.now)


def test_what_the_host_has_beside_its_devices_is_kept_and_an_older_agent_leaves_it_unknown(
    world: World,
) -> None:
    key, secret = Key(), token(world)
    told = replace(key.hello(token=secret), cpu_milli=64_000, memory_mib=524_288, site="Hall B", rack="B-07")

    admit(told, nonce=NONCE, now=world.now)

    node = Node.objects.get(name="gpu-09")
    assert (node.cpu_milli, node.memory_mib, node.site, node.rack) == (64_000, 524_288, "Hall B", "B-07")

    admit(key.hello(), nonce=NONCE, now=world.now)

    node.refresh_from_db()
    assert (node.cpu_milli, node.memory_mib) == (None, None)
    assert (node.site, node.rack) == ("Hall B", "B-07")


def test_where_a_device_sits_follows_what_its_node_says_last(world: World) -> None:
    key, secret = Key(), token(world)
    hello = key.hello(token=secret)
    admit(hello, nonce=NONCE, now=world.now)
    moved = tuple(replace(fact, pcie_switch="sw-3", numa_node=1) for fact in hello.devices)

    admit(replace(key.hello(), devices=moved), nonce=NONCE, now=world.now)

    rows = Device.objects.filter(node__name="gpu-09").values_list("pcie_switch", "numa_node")
    assert set(rows) == {("sw-3", 1)}


def test_a_blank_agents_leases_are_lost_at_the_word_before_also_when_that_fails_at_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, key = world.active(), Key()
    node = Node.objects.get(pk=lease.node_id)
    blank = replace(
        key.hello(node.name, token=token(world, node.name), last_epoch=0),
        devices=device_facts(node.name, "h100-80gb", 8),
    )
    word, lose = world.now + timedelta(minutes=1), reports.lose_forgotten
    Node.objects.filter(pk=node.pk).update(last_seen_at=word)

    def fails(*_args: object, **_kwargs: object) -> int:
        raise RuntimeError("the database is away")

    who = admit(blank, nonce=NONCE, now=word + timedelta(minutes=4))
    monkeypatch.setattr(reports, "lose_forgotten", fails)
    with pytest.raises(RuntimeError):
        consumers._settle_forgotten(who)
    monkeypatch.setattr(reports, "lose_forgotten", lose)
    monkeypatch.setattr(consumers, "db_now", lambda: word + timedelta(minutes=5))
    again = replace(key.hello(node.name, last_epoch=0), devices=blank.devices)
    consumers._settle_forgotten(admit(again, nonce=NONCE, now=word + timedelta(minutes=5)))

    lease.refresh_from_db()
    assert (lease.state, lease.ended_at) == ("cleaning", word)
    assert Node.objects.get(pk=node.pk).last_seen_at == word, "it is heard once it speaks after its welcome"


@pytest.mark.parametrize("nonce", ["ab", "ab:gpu-01", "x" * 64])
def test_a_nonce_that_is_not_random_enough_gets_no_signature_of_the_portal(world: World, nonce: str) -> None:
    hello = replace(Key().hello(token=token(world)), nonce=nonce)

    assert refused(hello, world) == "bad_nonce"


def test_an_agent_that_knows_another_portals_key_is_told_to_enrol_here(world: World) -> None:
    key = Key()
    admit(key.hello(token=token(world)), nonce=NONCE, now=world.now)
    signed = key.private.sign(challenge_text(NONCE, "gpu-09", "ef" * 32, "12" * 32)).hex()
    hello = replace(key.hello(), signature=signed, nonce="ef" * 32, portal_key="12" * 32)

    assert refused(hello, world) == "other_portal"
    assert refused(replace(hello, portal_key=""), world) == "bad_signature", "what it expects is signed too"
