"""Apps through the gateway: the way in, HTTP and WebSocket to a lease and back, and who is put out."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from portal.accounts.models import BrowserSession
from portal.audit.models import AuditEntry
from portal.common.clock import db_now
from portal.gateway import app_hosts, catalogue, upstream, visits
from portal.gateway.models import StreamTicket
from portal.gateway.tickets import make_ticket
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from tests.agent.test_lease_sockets import PYTHON, free_port
from tests.gateway import hostile_server
from tests.gateway.running import NodeEnd, linked, serving, session_of, until, unused_port
from tests.portal.builders import World
from tests.telemetry.conftest import rows

pytestmark = pytest.mark.django_db(transaction=True)
PORTAL = "http://localhost:8000"
SOON_S = 20


@dataclass
class Place:
    """An active lease of bob's with a web app in it, and a browser of his."""

    world: World
    lease: Lease
    node: NodeEnd
    port: int

    def host(self, app: str = "web") -> str:
        return app_hosts.origin(app, self.lease.uid, is_secure=False).removeprefix("http://")

    async def ticket(self, *, app: str = "web", who: str = "bob", **more: Any) -> str:
        session = more.pop("session_key", None) or await session_of(self.world, who)
        now = await rows(db_now)
        made = {"session_key": session, "now": now, "origin": PORTAL, "app": app, "host": "localhost", **more}
        return str(await rows(lambda: make_ticket(self.lease, self.world.user(who), **made)))

    @asynccontextmanager
    async def browser(
        self, *, app: str = "web", enter: bool = True, **more: Any
    ) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"Host": self.host(app)}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=SOON_S, trust_env=False
        ) as client:
            if enter:
                answer = await client.get("/_berth/enter", params={"t": await self.ticket(app=app, **more)})
                assert answer.status_code == 303, answer.text
                client.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
                await self.ready(client)
            yield client

    async def ready(self, client: httpx.AsyncClient) -> None:
        async with asyncio.timeout(SOON_S):
            while (await client.get("/_berth/state")).json()["state"] != "ready":
                await asyncio.sleep(0.05)


@pytest.fixture
def app_file(tmp_path: Path, settings: Any) -> Path:
    """Describe one app: a small web server that does as its path says."""
    folder = Path(tempfile.mkdtemp(prefix="berth-test-"))  # nobody can reach that of the test
    folder.chmod(0o755)
    script = folder / "web.py"
    shutil.copy(hostile_server.__file__, script)
    script.chmod(0o644)
    told = [
        {"name": "web", "title": "Web", "command": [PYTHON, str(script), "{socket}"], "socket": "web.sock",
         "ready_path": "/ok", "token": {"variable": "WEB_TOKEN", "scheme": "token"}, "start_path": "/start"},
        {"name": "broken", "title": "Broken", "command": ["/bin/sh", "-c", "echo no luck; exit 4"], "needs": ["luck"]},
    ]  # fmt: skip
    file = tmp_path / "apps.json"
    file.write_text(json.dumps(told))
    settings.APPS_CATALOGUE, settings.APPS_DOMAIN = str(file), "*.localhost:8001"
    yield script
    shutil.rmtree(folder)


@pytest_asyncio.fixture
async def place(world: World, tmp_path: Path, app_file: Path) -> AsyncIterator[Place]:
    lease = await rows(lambda: world.active("bob"))
    node = NodeEnd(await rows(lambda: lease.node.name), tmp_path)
    await node.enrol([lease])
    lease = await rows(lambda: Lease.objects.select_related("node").get(pk=lease.pk))
    async with serving() as port, node.dialling(port):
        await linked()
        yield Place(world, lease, node, port)


async def test_ticket_opens_the_app_without_a_trace_of_it_in_the_address(place: Place) -> None:
    async with place.browser(enter=False) as client:
        answer = await client.get("/_berth/enter", params={"t": await place.ticket()})

        assert (answer.status_code, answer.headers["location"]) == (303, "/start")
        assert answer.headers["referrer-policy"] == "no-referrer"
        cookie = answer.headers["set-cookie"]
        assert all(part in cookie for part in ("HttpOnly", "SameSite=Lax", "Path=/"))
        assert "domain" not in cookie.lower()


async def test_request_and_answer_go_through_and_the_audit_log_knows_when_and_nothing_of_what(
    place: Place,
) -> None:
    async with place.browser() as client:
        answer = await client.post(
            "/echo?a=b%20c", content=b"x" * 300_000, headers={"Origin": f"http://{place.host()}"}
        )
        told = answer.json()

    assert told["method"] == "POST"
    assert told["target"] == "/echo?a=b%20c"
    assert told["bytes"] == 300_000
    assert told["headers"]["host"] == place.host()
    assert told["headers"]["origin"] == f"http://{place.host()}"
    for visit in list(visits.visits.values()):
        visit.end("left")
    entries = await _audit(2)
    assert [entry.action for entry in entries] == ["app.opened", "app.closed"]
    assert set(entries[1].detail) == {
        "app",
        "node",
        "seconds",
        "requests",
        "shown_bytes",
        "sent_bytes",
        "why",
    }


async def _audit(count: int) -> list[AuditEntry]:
    async with asyncio.timeout(10):
        while True:
            found = await rows(
                lambda: list(AuditEntry.objects.filter(action__startswith="app.").order_by("id"))
            )
            if len(found) >= count:
                return list(found)
            await asyncio.sleep(0.02)


async def test_app_hears_its_token_from_the_gateway_and_the_browser_never_sees_it(place: Place) -> None:
    async with place.browser() as client:
        answer = await client.get("/echo", headers={"Authorization": "token of the browser"})

        assert answer.json()["headers"]["authorization"] == f"token {answer.json()['token']}"
        assert re.fullmatch("[0-9a-f]{64}", answer.json()["token"])


async def test_cookies_of_portal_and_gateway_never_reach_the_lease(place: Place) -> None:
    async with place.browser() as client:
        own = client.headers["Cookie"]
        sent = f"sessionid=secret; {own}; _xsrf=its-own; __Host-csrftoken=x; csrftoken=y; __Host-sessionid=z"
        answer = await client.get("/echo", headers={"Cookie": sent})

        assert answer.json()["headers"]["cookie"] == "_xsrf=its-own"


async def test_lease_sets_cookies_of_its_own_host_and_no_other(place: Place) -> None:
    async with place.browser() as client:
        answer = await client.get("/cookies")

        assert answer.headers.get_list("set-cookie") == ["plain=1; Path=/"]
        assert "clear-site-data" not in answer.headers


async def test_hop_by_hop_headers_stay_between_neighbours(place: Place) -> None:
    async with place.browser() as client:
        answer = await client.get("/hops", headers={"Connection": "X-Mine", "X-Mine": "1", "TE": "trailers"})

        told = answer.json()["headers"]
        assert not {"x-mine", "te", "keep-alive"} & told.keys()
        assert "x-theirs" not in answer.headers
        assert "keep-alive" not in answer.headers


async def test_connections_into_the_lease_are_kept_and_not_too_many(place: Place) -> None:
    async with place.browser() as client:
        ports = {(await client.get("/echo")).json()["connection"] for _ in range(20)}
        await asyncio.gather(*(client.get("/slow") for _ in range(30)))
        (visit,) = visits.visits.values()

        assert len(ports) == 1
        assert visit.upstream.count <= upstream.MOST_IDLE


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/broken-header", "no HTTP"),
        ("/huge-header", "no HTTP"),
        ("/not-http", "no HTTP"),
        ("/closes", "no HTTP"),
        ("/upgrade-unasked", "no HTTP"),
        ("/two-lengths", "no HTTP"),
    ],
)
async def test_broken_answer_is_a_sentence_and_the_next_request_is_served(
    place: Place, path: str, sentence: str
) -> None:
    async with place.browser() as client:
        answer = await client.get(path)
        again = await client.get("/ok")

    assert (answer.status_code, again.status_code) == (502, 200)
    assert sentence in answer.text


async def test_app_that_gives_no_answer_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place.browser() as client:
        await client.get("/ok")  # the way into the lease is open: only the answer is waited for
        monkeypatch.setattr(upstream, "FIRST_ANSWER_WITHIN_S", 0.3)
        answer = await client.get("/silent")

    assert answer.status_code == 502
    assert "gave no answer" in answer.text


async def test_answer_without_end_is_held_to_what_is_read_of_it(place: Place) -> None:
    async with place.browser() as client:
        async with client.stream("GET", "/endless") as answer:
            read = 0
            async for data in answer.aiter_bytes():
                read += len(data)
                if read > 1_000_000:
                    break
            (visit,) = visits.visits.values()
            await asyncio.sleep(0.3)
            before = visit.shown
            await asyncio.sleep(0.3)
            assert visit.shown - before < 1_000_000
        again = await client.get("/ok")

    assert again.status_code == 200


async def test_answer_that_breaks_off_is_no_whole_answer(place: Place) -> None:
    async with place.browser() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/short")
        assert (await client.get("/ok")).status_code == 200


async def test_browser_that_leaves_ends_the_request_in_the_lease(place: Place) -> None:
    async with place.browser() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/silent", timeout=0.3)
        (visit,) = visits.visits.values()

        await until(lambda: visit.busy == 0)
        assert visit.upstream.count <= 1


@pytest.mark.deep
async def test_connections_without_end_are_too_many_for_one_lease_and_other_people_notice_nothing(
    place: Place,
) -> None:
    limits = httpx.Limits(max_connections=200)
    async with place.browser() as client:
        headers = dict(client.headers)
        async with httpx.AsyncClient(
            base_url=client.base_url, headers=headers, limits=limits, timeout=60
        ) as many:
            asked = [asyncio.create_task(many.get("/hang")) for _ in range(200)]
            (visit,) = visits.visits.values()
            async with asyncio.timeout(60):
                while sum(task.done() for task in asked) < 200 - visits.MOST_REQUESTS:
                    await asyncio.sleep(0.1)
            refused = [task.result().status_code for task in asked if task.done()]
            other = await httpx.AsyncClient(trust_env=False).get(f"http://127.0.0.1:{place.port}/healthz")
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    assert set(refused) == {503}
    assert other.status_code == 200
    assert visit.busy <= visits.MOST_REQUESTS


# Who is let in


async def test_ticket_is_good_once_and_only_for_its_app(place: Place) -> None:
    secret = await place.ticket()
    async with place.browser(enter=False) as client:
        first = await client.get("/_berth/enter", params={"t": secret})
        again = await client.get("/_berth/enter", params={"t": secret})
        other = await client.get("/_berth/enter", params={"t": await place.ticket(app="broken")})
        terminal = await client.get("/_berth/enter", params={"t": await place.ticket(app="")})

    assert [one.status_code for one in (first, again, other, terminal)] == [303, 401, 401, 401]


async def test_ticket_of_half_a_minute_ago_is_too_old(place: Place) -> None:
    secret = await place.ticket()
    await rows(lambda: StreamTicket.objects.update(expires_at=db_now() - timedelta(seconds=1)))
    async with place.browser(enter=False) as client:
        assert (await client.get("/_berth/enter", params={"t": secret})).status_code == 401


async def test_nobody_gets_in_without_the_cookie_or_with_that_of_another_app(place: Place) -> None:
    async with place.browser() as client, place.browser(app=f"port-{free_port()}", enter=False) as other:
        without = await client.get("/echo", headers={"Cookie": ""})
        elsewhere = await other.get("/", headers={"Cookie": client.headers["Cookie"]})

    assert (without.status_code, elsewhere.status_code) == (401, 401)


async def test_old_cookie_says_where_to_open_the_app_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.browser() as client:
        monkeypatch.setattr("portal.gateway.app_cookies.GOOD_FOR_S", -1)
        answer = await client.get("/ok")

    assert answer.status_code == 401
    assert f"{PORTAL}/leases/{place.lease.uid}/" in answer.text


async def test_cookie_is_renewed_while_it_is_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place.browser() as client:
        monkeypatch.setattr("portal.gateway.app_cookies.RENEWED_AFTER_S", -1)
        answer = await client.get("/ok")

    assert answer.headers["set-cookie"].startswith("berth-app=")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://web--lse-other.localhost:8001"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
async def test_page_of_another_lease_may_ask_for_nothing(place: Place, headers: dict[str, str]) -> None:
    async with place.browser() as client:
        answer = await client.post("/echo", headers=headers)

    assert answer.status_code == 403


async def test_host_that_names_no_app_is_nobodys(place: Place) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        for host in ("x.localhost:8001", "nothing--lse-0.localhost:8001", "a.b.localhost:8001"):
            answer = await client.get(f"http://127.0.0.1:{place.port}/healthz", headers={"Host": host})
            assert answer.status_code == 404
        assert (await client.get(f"http://127.0.0.1:{place.port}/healthz")).status_code == 200


# Who is put out


async def _end_lease(place: Place) -> None:
    await rows(lambda: Lease.objects.filter(pk=place.lease.pk).update(state=LeaseState.ENDING))


async def _sign_out(place: Place) -> None:
    await rows(lambda: BrowserSession.objects.all().delete())


@pytest.mark.parametrize(("end", "status"), [(_end_lease, 410), (_sign_out, 401)])
async def test_lost_right_ends_requests_and_sockets_within_a_second(
    place: Place, end: Any, status: int
) -> None:
    async with place.browser() as client, socket_of(place, client) as socket:
        await socket.send("hi")
        assert await socket.recv() == "hi"
        hanging = asyncio.create_task(client.get("/hang"))
        (visit,) = visits.visits.values()
        await until(lambda: visit.busy == 2)

        await end(place)

        async with asyncio.timeout(SOON_S):
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            assert (await hanging).status_code == status
        assert (await client.get("/ok")).status_code == status
        assert visit.upstream.count == 0


async def test_node_that_goes_away_is_said_and_found_again(place: Place) -> None:
    from portal.gateway.nodes import links

    async with place.browser() as client:
        for link in list(links.values()):
            link.close(1012)
        answer = await client.get("/ok")
        await linked()
        again = await client.get("/ok")
        await place.ready(client)

    assert answer.status_code == 503
    assert again.status_code in (200, 503)


# WebSockets


@asynccontextmanager
async def socket_of(
    place: Place, client: httpx.AsyncClient, path: str = "/ws", **more: Any
) -> AsyncIterator[Any]:
    async with connect(
        f"ws://{place.host()}{path}", host="127.0.0.1", port=place.port,
        additional_headers={"Cookie": client.headers["Cookie"]}, origin=more.pop("origin", f"http://{place.host()}"),
        compression=None, proxy=None, max_size=None, **more,
    ) as socket:  # fmt: skip
        yield socket


async def test_messages_of_both_kinds_go_both_ways(place: Place) -> None:
    async with place.browser() as client, socket_of(place, client, subprotocols=["v1.kernel"]) as socket:
        await socket.send("中文")
        text = await socket.recv()
        await socket.send(b"\x00" * 200_000)
        data = await socket.recv()

    assert socket.subprotocol == "v1.kernel"
    assert (text, len(data)) == ("中文", 200_000)


@pytest.mark.parametrize("origin", ["http://web--lse-other.localhost:8001", "http://localhost:8000", None])
async def test_page_of_another_origin_opens_no_socket(place: Place, origin: str | None) -> None:
    async with place.browser() as client:
        with pytest.raises(InvalidStatus):
            async with socket_of(place, client, origin=origin):
                pass


async def test_socket_that_the_app_refuses_is_refused(place: Place) -> None:
    async with place.browser() as client:
        with pytest.raises(InvalidStatus):
            async with socket_of(place, client, path="/ok"):
                pass


# Apps that do not come up


async def test_failed_start_shows_what_was_said_last(place: Place) -> None:
    async with place.browser(app="broken", enter=False) as client:
        answer = await client.get("/_berth/enter", params={"t": await place.ticket(app="broken")})
        client.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
        async with asyncio.timeout(SOON_S):
            while (await client.get("/_berth/state")).json()["state"] != "failed":
                await asyncio.sleep(0.05)
        page = await client.get("/")

    assert page.status_code == 502
    assert "no luck" in page.text
    assert "It needs luck" in page.text


async def test_port_of_a_program_that_the_holder_started_opens_too(place: Place) -> None:
    port = unused_port()
    async with place.browser(app=f"port-{port}", enter=False) as client:
        answer = await client.get("/_berth/enter", params={"t": await place.ticket(app=f"port-{port}")})
        client.headers["Cookie"] = answer.headers["set-cookie"].partition(";")[0]
        nothing = await client.get("/")

    assert nothing.status_code == 502
    assert "Nothing listens there" in nothing.text


def test_catalogue_has_what_the_page_offers() -> None:
    assert [app.name for app in catalogue.apps()] == ["jupyterlab", "vscode", "tensorboard"]
    assert catalogue.app_of("port-7860") is not None
    assert catalogue.app_of("port-0") is None
    assert catalogue.app_of("port-70000") is None
