from __future__ import annotations

import asyncio
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.accounts.sign_in_attempts import BAD_TOKEN, BadTokens
from portal.common.live import EVENTS, publish
from portal.fleet.models import Node
from portal.leases import lifecycle, transitions
from portal.leases.models import Lease
from portal.telemetry.frames import DeviceNow, Frame, SlotNow
from portal.telemetry.hub import switchboard
from portal.telemetry.ring import readings
from tests.portal.builders import World
from tests.telemetry.conftest import rows
from tests.telemetry.talk import Talk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]


def frame_of(lease: Lease, *, seq: int, at: float, util: float | None = 50.0) -> list[Any]:
    """Return the message that a web process gets for a lease's node."""
    place = lease.placements.select_related("device").get()
    uuid = place.device.uuid
    slot = SlotNow(
        lease.uid, lease.team_id, uuid, place.start, place.size, False, util, 4000, place.memory_mib, "gpm"
    )
    device = DeviceNow(uuid, util, 4000, 81_920, 300.0, 60.0, "nvml")
    return list(Frame(lease.node.name, at, "boot-1", seq, (device,), (slot,)))


async def token_of(world: World, name: str) -> str:
    return await rows(lambda: world.token(name))


async def test_a_snapshot_comes_first_and_frames_count_on_from_it(world: World) -> None:
    lease = await rows(world.active)
    now = world.now.timestamp()
    for seq in (1, 2):
        message = await rows(lambda s=seq: frame_of(lease, seq=s, at=now + s, util=10.0 * s))
        switchboard().on_frame("", message)

    async with Talk(token=await token_of(world, "bob")) as bob:
        (snapshot,) = await bob.subscribe(f"lease:{lease.uid}")
        switchboard().on_frame("", await rows(lambda: frame_of(lease, seq=3, at=now + 3, util=None)))
        switchboard().tick(now=now + 3)
        frame = await bob.hear()

    assert (snapshot["type"], snapshot["topic"]) == ("snapshot", f"lease:{lease.uid}")
    assert snapshot["data"]["util"] == 20.0
    assert [row[1] for row in snapshot["data"]["history"]] == [10.0, 20.0]
    assert (frame["type"], frame["seq"]) == ("frame", snapshot["seq"] + 1)
    assert frame["data"]["util"] is None
    assert frame["data"]["memory_used_mib"] == 4000
    assert "history" not in frame["data"]


async def test_a_lease_that_nobody_measured_is_unknown_but_its_size_is_known(world: World) -> None:
    lease = await rows(world.active)

    async with Talk(token=await token_of(world, "bob")) as bob:
        (snapshot,) = await bob.subscribe(f"lease:{lease.uid}")

    data = snapshot["data"]
    assert (data["util"], data["memory_used_mib"], data["power_w"]) == (None, None, None)
    assert data["memory_mib"] == world.flavors["h100-1g-10gb"].memory_mib
    assert data["slots"][0]["util"] is None
    assert data["history"] == []


async def test_a_foreign_lease_answers_like_one_that_does_not_exist(world: World) -> None:
    lease = await rows(world.active)

    async with Talk(token=await token_of(world, "charlie")) as charlie:
        foreign, missing = await charlie.subscribe(f"lease:{lease.uid}", "lease:lse-0000000000000000")
        switchboard().on_frame("", await rows(lambda: frame_of(lease, seq=1, at=world.now.timestamp())))
        written = switchboard().tick(now=world.now.timestamp())

    assert foreign["code"] == missing["code"] == "unknown_topic"
    assert {**foreign, "topic": ""} == {**missing, "topic": ""}
    assert written == 0


async def test_the_map_names_leases_only_to_those_who_may_see_them(world: World) -> None:
    lease = await rows(world.active)
    switchboard().on_frame(
        "", await rows(lambda: frame_of(lease, seq=1, at=world.now.timestamp(), util=33.0))
    )

    seen = {}
    for name in ("bob", "alice", "operator", "charlie"):
        async with Talk(token=await token_of(world, name)) as person:
            (snapshot,) = await person.subscribe("fleet")
            devices = snapshot["data"]["nodes"]["gpu-01"]["devices"]
            seen[name] = next(d["slots"][0] for d in devices.values() if d["slots"])

    assert seen["bob"] == seen["alice"] == seen["operator"]
    assert seen["bob"][0] == lease.uid
    assert seen["charlie"][0].startswith("other-")
    assert seen["charlie"][1:] == seen["bob"][1:]
    assert lease.uid not in str(seen["charlie"])


async def test_the_fleet_shows_every_node_even_one_that_never_measured(world: World) -> None:
    async with Talk(token=await token_of(world, "charlie")) as charlie:
        fleet, node, missing = await charlie.subscribe("fleet", "node:gpu-03", "node:gpu-99")

    assert set(fleet["data"]["nodes"]) == {"gpu-01", "gpu-03"}
    assert set(node["data"]["nodes"]) == {"gpu-03"}
    device = next(iter(node["data"]["nodes"]["gpu-03"]["devices"].values()))
    assert (device["util"], device["temp"]) == (None, None)
    assert device["memory_mib"] > 0
    assert missing["code"] == "unknown_topic"


async def test_a_thousand_frames_between_two_ticks_become_one_write(world: World) -> None:
    lease = await rows(world.active)
    now = world.now.timestamp()
    message = await rows(lambda: frame_of(lease, seq=0, at=now))

    async with (
        Talk(token=await token_of(world, "bob")) as bob,
        Talk(token=await token_of(world, "alice")) as alice,
    ):
        for person in (bob, alice):
            await person.subscribe("fleet")
        for seq in range(1, 1001):
            switchboard().on_frame("", [message[0], now + seq / 1000, "boot-1", seq, *message[4:]])
        written = [switchboard().tick(now=now + 1), switchboard().tick(now=now + 1)]
        first, second = await bob.hear(), await alice.hear()
        quiet = await bob.is_quiet()

    assert written == [2, 0]
    assert first["seq"] == second["seq"] == 1
    assert quiet


async def test_people_with_the_same_view_get_the_same_string(world: World) -> None:
    lease = await rows(world.active)
    now = world.now.timestamp()

    async with (
        Talk(token=await token_of(world, "bob")) as one,
        Talk(token=await token_of(world, "bob")) as two,
    ):
        for person in (one, two):
            await person.subscribe("fleet")
        switchboard().on_frame("", await rows(lambda: frame_of(lease, seq=1, at=now)))
        for seat in switchboard().seats:
            seat.mailbox._news = asyncio.Event()
        switchboard().tick(now=now)
        texts = [seat.mailbox._frames["fleet"] for seat in switchboard().seats]

    assert texts[0] is texts[1]


async def test_a_reader_that_takes_nothing_costs_one_frame_per_topic(world: World) -> None:
    lease = await rows(world.active)
    now = world.now.timestamp()
    message = await rows(lambda: frame_of(lease, seq=0, at=now))

    async with Talk(token=await token_of(world, "bob")) as bob:
        await bob.subscribe("fleet", f"lease:{lease.uid}")
        bob.hold()
        for seq in range(1, 501):
            switchboard().on_frame("", [message[0], now + seq, "boot-1", seq, *message[4:]])
            switchboard().tick(now=now + seq)
            await asyncio.sleep(0)
        (seat,) = switchboard().seats
        waiting, dropped = seat.mailbox.waiting(), seat.mailbox.dropped
        bob.resume()
        seqs = {}
        for _ in range(3):
            heard = await bob.hear()
            seqs[heard["topic"]] = heard["seq"]

    assert waiting <= 2
    assert dropped >= 990
    assert seqs == {"fleet": 500, f"lease:{lease.uid}": 500}


async def test_a_node_that_goes_silent_turns_unknown_by_itself(world: World) -> None:
    lease = await rows(world.active)
    now = world.now.timestamp()
    switchboard().on_frame("", await rows(lambda: frame_of(lease, seq=1, at=now)))

    async with Talk(token=await token_of(world, "bob")) as bob:
        await bob.subscribe(f"lease:{lease.uid}", "node:gpu-01")
        switchboard().tick(now=now + 1)
        silent = switchboard().tick(now=now + 16)
        heard = {message["topic"]: message["data"] for message in (await bob.hear(), await bob.hear())}
        again = switchboard().tick(now=now + 17)

    node = heard["node:gpu-01"]["nodes"]["gpu-01"]
    assert (silent, again) == (2, 0)
    assert heard[f"lease:{lease.uid}"]["util"] is None
    assert node["state"] == "stale"
    assert {device["util"] for device in node["devices"].values()} == {None}


async def test_unsubscribing_ends_the_frames_of_that_topic_only(world: World) -> None:
    lease = await rows(world.active)
    now = world.now.timestamp()

    async with Talk(token=await token_of(world, "bob")) as bob:
        await bob.subscribe("fleet", f"lease:{lease.uid}")
        await bob.say({"op": "unsubscribe", "topics": ["fleet", "lease:never", "me"]})
        assert await bob.is_quiet()
        switchboard().on_frame("", await rows(lambda: frame_of(lease, seq=1, at=now)))
        written = switchboard().tick(now=now)
        heard = await bob.hear()

    assert written == 1
    assert heard["topic"] == f"lease:{lease.uid}"
    assert switchboard().topics == {}
    assert switchboard().seats == set()


async def test_a_lease_that_becomes_active_is_told_at_once_to_its_team_and_nobody_else(world: World) -> None:
    request = await rows(world.submit)
    await rows(world.turn)
    lease = await rows(lambda: Lease.objects.get(request=request))
    tokens = {name: await token_of(world, name) for name in ("bob", "alice", "charlie")}

    async with (
        Talk(token=tokens["bob"]) as bob,
        Talk(token=tokens["alice"]) as alice,
        Talk(token=tokens["charlie"]) as charlie,
    ):
        for person in (bob, alice, charlie):
            await person.subscribe("me")
        await rows(lambda: world.ready(lease))
        heard = [await bob.hear(), await alice.hear()]
        quiet = await charlie.is_quiet()

    assert heard[0] == heard[1]
    assert {
        key: heard[0][key] for key in ("type", "topic", "event", "lease", "request", "team", "state")
    } == {
        "type": "event",
        "topic": "me",
        "event": "lease.active",
        "lease": lease.uid,
        "request": request.uid,
        "team": "perception",
        "state": "active",
    }
    assert quiet


async def test_nothing_is_told_of_a_transaction_that_was_undone(world: World) -> None:
    lease = await rows(world.active)

    def undone() -> None:
        with transaction.atomic():
            lifecycle.end_leases(transitions.lock_leases([lease.pk]), reason="released", at=world.now)
            transaction.set_rollback(True)

    async with Talk(token=await token_of(world, "bob")) as bob:
        await bob.subscribe("me")
        await rows(undone)
        await rows(
            lambda: lifecycle.release_lease(lease=lease, actor=None, now=world.now + timedelta(seconds=5))
        )
        heard = await bob.hear()

    assert heard["event"] == "lease.ending"
    assert heard["at"].startswith((world.now + timedelta(seconds=5)).isoformat()[:19])


async def test_an_event_of_a_team_made_a_moment_ago_still_arrives(world: World) -> None:
    from portal.teams.services import create_team

    async with Talk(token=await token_of(world, "alice")) as alice:
        await alice.subscribe("me")
        team = await rows(
            lambda: create_team(name="New", slug="new", parent=world.team("vision"), now=world.now)
        )
        await asyncio.to_thread(
            publish, EVENTS, [{"event": "request.queued", "team": team.pk, "state": "queued"}]
        )
        heard = await alice.hear()

    assert (heard["event"], heard["team"]) == ("request.queued", "new")


async def test_a_pause_of_intake_is_told_to_everybody_and_names_nothing(world: World) -> None:
    from portal.fleet.pauses import end_pause, pause_intake

    async with Talk(token=await token_of(world, "bob")) as bob:
        await bob.subscribe("me")
        about = {"cause": "alt-1", "now": world.now}
        await rows(lambda: pause_intake(node=world.nodes["gpu-01"], device=None, reason="hot", **about))
        begun = await bob.hear()
        await rows(lambda: end_pause(actor=None, **about))
        ended = await bob.hear()

    for heard in (begun, ended):
        told = {name: value for name, value in heard.items() if value}
        assert told == {"type": "event", "topic": "me", "event": "intake.changed"}


async def test_an_event_that_makes_no_sense_is_ignored(world: World) -> None:
    async with Talk(token=await token_of(world, "bob")) as bob:
        await bob.subscribe("me")
        for junk in (None, 7, [], {}, {"team": "x"}, {"team": None, "event": "lease.active"}):
            switchboard().on_event("", junk)

        assert await bob.is_quiet()


async def test_a_frame_of_another_version_is_skipped_and_the_next_one_shown(world: World) -> None:
    from portal.common.live import FRAMES

    lease = await rows(world.active)
    good = await rows(lambda: frame_of(lease, seq=1, at=world.now.timestamp()))

    await asyncio.to_thread(publish, FRAMES, [["short"], None, {"n": 1}, good])
    async with asyncio.timeout(5):
        while not readings.frames:
            await asyncio.sleep(0.01)

    assert set(readings.frames) == {"gpu-01"}


async def test_when_live_news_is_back_everybody_comes_again_to_read_the_rows(world: World) -> None:
    async with Talk(token=await token_of(world, "bob")) as bob:
        await bob.subscribe("me")
        switchboard().on_news(False)
        told = await bob.hear()
        switchboard().on_news(True)
        code = await bob.ended()

    assert (told["type"], told["code"]) == ("error", "live_paused")
    assert code == 1012


async def test_a_snapshot_is_never_older_than_the_silence_others_were_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever subscribes while a node falls silent misses the frame that says so, and no other follows."""
    lease = await rows(world.active)
    began = timezone.now()
    await rows(lambda: Node.objects.update(last_seen_at=began))
    switchboard().on_frame("", await rows(lambda: frame_of(lease, seq=1, at=began.timestamp())))
    look_up = switchboard()._look_up

    async def slow_look_up(*asked: Any) -> Any:
        found = await look_up(*asked)
        switchboard().tick(now=began.timestamp() + settings.NODE_STALE_AFTER_S + 1)
        return found

    monkeypatch.setattr(switchboard(), "_look_up", slow_look_up)

    async with Talk(token=await token_of(world, "bob")) as bob:
        (snapshot,) = await bob.subscribe("node:gpu-01")

    assert snapshot["data"]["nodes"]["gpu-01"]["state"] == "stale"


async def test_guesses_at_a_token_are_counted_by_place(
    world: World, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr("portal.telemetry.viewers.bad_tokens", BadTokens())
    settings.TRUSTED_PROXIES = [ip_network("10.0.0.1")]

    wrong = "bth_wrong"

    async def guess(token: str, place: str) -> int | None:
        talk = Talk(token=token, **{"x-forwarded-for": place})
        talk.scope["client"] = ("10.0.0.1", 4711)
        async with talk:
            return 0 if token != wrong and await talk.is_quiet() else await talk.ended()

    codes = [await guess(wrong, "192.0.2.7") for _nth in range(BAD_TOKEN.most + 1)]

    assert codes == [4401] * BAD_TOKEN.most + [4429]
    assert await guess(wrong, "192.0.2.8") == 4401
    assert await guess(await token_of(world, "bob"), "192.0.2.7") == 0
