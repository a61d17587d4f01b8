"""The live socket says when a job has printed more: to those who may read it, and never what."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.protocol.jobs import LOG, OutputPiece
from portal.common.live import LOGS
from portal.jobs import logs
from portal.jobs.logs import store_piece
from portal.telemetry.hub import switchboard
from tests.agents.test_reports import Desk
from tests.jobs.test_jobs import desk, hand_in, started  # noqa: F401
from tests.portal.builders import World
from tests.telemetry.conftest import rows
from tests.telemetry.talk import Talk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]


def grown(job: str, size: int) -> dict[str, Any]:
    return {"job": job, "attempt": 1, "size": size, "at": 1_700_000_000.0}


async def test_reader_of_a_job_is_told_at_once_that_there_is_more(world: World) -> None:
    job = (await rows(lambda: hand_in(world)))[0].uid

    async with Talk(token=await rows(lambda: world.token("bob"))) as bob:
        (snapshot,) = await bob.subscribe(f"job:{job}")
        switchboard().on_log(LOGS, grown(job, 12))
        frame = await bob.hear()
        switchboard().on_log(LOGS, grown("job-other", 12))
        is_quiet = await bob.is_quiet()

    assert (snapshot["type"], snapshot["data"]) == ("snapshot", {})
    assert (frame["type"], frame["topic"], frame["data"]) == (
        "frame",
        f"job:{job}",
        {"attempt": 1, "size": 12},
    )
    assert frame["seq"] == snapshot["seq"] + 1
    assert is_quiet


async def test_whoever_may_not_read_a_job_hears_nothing_of_it(world: World) -> None:
    job = (await rows(lambda: hand_in(world)))[0].uid

    # Charlie is of another team; operators may not read what people's jobs print.
    for name in ("charlie", "operator"):
        async with Talk(token=await rows(lambda name=name: world.token(name))) as stranger:
            foreign, missing = await stranger.subscribe(f"job:{job}", "job:job-0000000000000000")
            switchboard().on_log(LOGS, grown(job, 12))
            is_quiet = await stranger.is_quiet()

        assert foreign["code"] == missing["code"] == "unknown_topic"
        assert is_quiet


async def test_news_that_makes_no_sense_disturbs_nobody(world: World) -> None:
    for message in (None, [], {}, {"job": 7}, "job"):
        switchboard().on_log(LOGS, message)


async def test_stored_output_is_told_once_it_can_be_read(
    world: World,
    desk: Desk,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(logs, "publish_on_commit", lambda channel, news: told.append((channel, news)))

    def store() -> str:
        job, lease = started(world, desk)
        for piece, data in ((0, b"one\n"), (0, b"one\n"), (4, b"two\n")):
            store_piece(
                lease.node_id,
                OutputPiece(LOG, lease.uid, lease.generation, piece),
                data,
                now=world.now,
            )
        return job.uid

    job = await rows(store)

    assert [(channel, news[0]["job"], news[0]["size"]) for channel, news in told] == [
        (LOGS, job, 4),
        (LOGS, job, 8),
    ]
