"""HTTP on the hosts of apps: the way in, the gateway's own pages there, and everything else to the lease and back.

Recognised by Host before anything else (application.py). Bodies are never kept: each piece waits until the other side
takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import parse_qs

import h11
from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone, translation

from nodeagent.protocol.lease_streams import ENDED, FAILED, READY
from portal.common.clock import db_now
from portal.common.errors import Unavailable
from portal.gateway import access, app_cookies, app_hosts, app_pages
from portal.gateway.access import LeaseSeat, SeatRefusal
from portal.gateway.app_cookies import AppCookie
from portal.gateway.app_pages import PLAIN, START_PATH, STATE_PATH, Page
from portal.gateway.catalogue import App, app_of
from portal.gateway.database import in_database
from portal.gateway.lease_stream import StreamLostError
from portal.gateway.nodes import AsgiMessage, Receive, Send
from portal.gateway.tickets import take_ticket
from portal.gateway.upstream import BadAnswerError, HttpRequest, without_hops
from portal.gateway.visits import AppVisit, TooManyError, visit_of

log = logging.getLogger(__name__)

# What would speak for other hosts of the domain, or for the connection to the browser, which is the gateway's.
NOT_FROM_LEASE: Final = frozenset(
    {b"alt-svc", b"clear-site-data", b"date", b"set-cookie2", b"strict-transport-security"}
)
NOT_TO_LEASE: Final = frozenset({b"expect", b"forwarded"})
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
FOREIGN: Final = frozenset({b"cross-site", b"same-site"})
LONGEST_TICKET: Final = 100
Headers = list[tuple[bytes, bytes]]


async def app_http(scope: AsgiMessage, receive: Receive, send: Send) -> None:
    """Serve one request on an app's host."""
    headers: Headers = scope["headers"]
    found = address_of(headers)
    app = app_of(found[0]) if found else None
    if found is None or app is None:
        await _show(send, app_pages.refusal("no_app", "", settings.LANGUAGE_CODE))
        return
    if scope["path"] == app_hosts.ENTER_PATH:
        await _enter(scope, send, app, found[1])
        return
    cookie, age_s = cookie_of(headers, app, found[1])
    language = cookie.language if cookie else settings.LANGUAGE_CODE
    link = link_of(cookie)
    if cookie is None or age_s > app_cookies.GOOD_FOR_S:
        await _show(send, app_pages.refusal("no_cookie", app.title, language, link=link))
        return
    if scope["method"] in ("CONNECT", "TRACE"):
        await _show(send, app_pages.refusal("bad_request", app.title, language))
        return
    if is_foreign(scope, headers):
        await _show(send, app_pages.refusal("strange_page", app.title, language))
        return
    visit = await visit_or_code(cookie, app)
    if isinstance(visit, str):
        await _show(send, app_pages.refusal(visit, app.title, language, link=link))
        return
    if scope["path"] in (STATE_PATH, START_PATH):
        await _own(scope, send, visit, language)
        return
    renewed = [app_cookies.set_cookie(cookie)] if age_s > app_cookies.RENEWED_AFTER_S else []
    if visit.word.state != READY:
        await _show(send, waiting_page(visit, language))
        return
    await _Exchange(scope, receive, send, visit, cookie, renewed).run()


async def _enter(scope: AsgiMessage, send: Send, app: App, lease: str) -> None:
    """Take the one-time token, give a cookie of this host, and go on without the token."""
    asked = parse_qs(scope["query_string"].decode("latin-1")[:LONGEST_TICKET])
    secret = (asked.get("t") or [""])[0]
    try:
        found = await in_database(lambda: _redeem(secret, app, lease))
        if isinstance(found, SeatRefusal):
            cookie, code = None, found.code
        else:
            cookie, code = found, ""
            visit = await visit_of(found, app, restart=True)
            code = visit.code if isinstance(visit, SeatRefusal) else ""
    except TooManyError:
        cookie, code = None, "too_many"
    except (DatabaseError, Unavailable) as no:
        log.warning("an app could not be entered: %s", no)
        cookie, code = None, "unavailable"
    if cookie is None or code:
        language = cookie.language if cookie else settings.LANGUAGE_CODE
        await _show(send, app_pages.refusal(code, app.title, language, link=link_of(cookie)))
        return
    headers = [
        (b"location", app.start_path.encode()),
        (b"content-length", b"0"),
        app_cookies.set_cookie(cookie),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": [*headers, *PLAIN]})
    await send({"type": "http.response.body", "body": b""})


def _redeem(secret: str, app: App, lease: str) -> AppCookie | SeatRefusal:
    now = db_now()
    ticket = take_ticket(secret, now=now) if secret.isascii() else None
    if ticket is None or ticket.app != app.name:
        return SeatRefusal("bad_ticket")
    seat = access.seat_of(ticket, now=now)
    if not isinstance(seat, LeaseSeat):
        return seat
    if seat.uid != lease:
        return SeatRefusal("bad_ticket")
    return AppCookie(
        ticket.user_id, ticket.session_key, ticket.token_id, ticket.lease_id, ticket.generation, app.name, lease,
        ticket.origin, seat.viewer.language,
    )  # fmt: skip


async def _own(scope: AsgiMessage, send: Send, visit: AppVisit, language: str) -> None:
    """Tell the progress page how the app does, or start it again."""
    if scope["path"] == START_PATH:
        if scope["method"] != "POST":
            await _show(send, app_pages.refusal("bad_request", visit.app.title, language))
            return
        if visit.word.state in (FAILED, ENDED):
            visit.start(restart=True)
        headers = [(b"location", visit.app.start_path.encode()), (b"content-length", b"0"), *PLAIN]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    with translation.override(language):
        text = app_pages.state_text(visit.app, visit.word)
    told = {"state": visit.word.state, "text": text, "detail": visit.word.detail}
    body = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *PLAIN]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Exchange:
    """One request to the lease, and its answer."""

    def __init__(
        self,
        scope: AsgiMessage,
        receive: Receive,
        send: Send,
        visit: AppVisit,
        cookie: AppCookie,
        renewed: Headers,
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._visit, self._cookie, self._renewed = visit, cookie, renewed
        self._is_told = self._is_gone = False
        self._is_body_over = asyncio.Event()

    async def run(self) -> None:
        """Ask, and answer with what comes, or with a sentence where nothing of use does."""
        visit, loop = self._visit, asyncio.get_running_loop()
        try:
            async with visit.request():
                asking = loop.create_task(self._ask())
                leaving = loop.create_task(self._left())
                ended = loop.create_task(visit.ended())
                try:
                    await asyncio.wait((asking, leaving, ended), return_when=asyncio.FIRST_COMPLETED)
                    code = self._code_of(asking)
                finally:
                    for task in (asking, leaving, ended):
                        task.cancel()
                    await asyncio.gather(asking, leaving, ended, return_exceptions=True)
        except TooManyError:
            code = "too_many"
        if code and not self._is_told:
            if visit.word.state != READY and code not in ("lease_over", "too_many"):
                await _show(self._send, waiting_page(visit, self._cookie.language))
                return
            page = app_pages.refusal(code, visit.app.title, self._cookie.language, link=link_of(self._cookie))
            await _show(self._send, page)

    def _code_of(self, asking: asyncio.Task[None]) -> str:
        """Return why there is no answer, "" where there is one or nobody waits for it."""
        if self._visit.over:
            return self._visit.over
        if not asking.done():
            return ""
        no = asking.exception()
        if no is None:
            return ""
        if isinstance(no, StreamLostError):
            self._visit.look_again()
            known = ("refused", "not_yours", "lease_over", "node_away")
            return (
                no.code
                if no.code in known
                else "too_many"
                if no.code.startswith("too_many")
                else "bad_answer"
            )
        if isinstance(no, BadAnswerError):
            return no.code
        if isinstance(no, OSError | RuntimeError):  # the browser's side is gone
            return ""
        log.error("an app's request failed", exc_info=no)
        return "bad_answer"

    async def _ask(self) -> None:
        scope, visit = self._scope, self._visit
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        request = HttpRequest(
            scope["method"].encode("latin-1"),
            target,
            to_lease(scope["headers"], visit),
            self._body_of(scope["headers"]),
        )
        await visit.upstream.exchange(request, self._head, self._piece)
        await self._send({"type": "http.response.body", "body": b""})

    def _body_of(self, headers: Headers) -> Any:
        has_body = any(
            (name == b"content-length" and value.strip() != b"0") or name == b"transfer-encoding"
            for name, value in headers
        )
        if not has_body:
            self._is_body_over.set()
            return None
        return self._body

    async def _body(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                self._is_gone = True
                self._is_body_over.set()
                return
            more = bool(message.get("more_body"))
            if not more:
                self._is_body_over.set()
            if body := message.get("body"):
                self._visit.sent += len(body)
                yield body

    async def _left(self) -> None:
        """Wait until the browser is gone; the body is somebody else's to read."""
        await self._is_body_over.wait()
        while not self._is_gone and (await self._receive())["type"] != "http.disconnect":
            pass

    async def _head(self, response: h11.Response) -> None:
        headers = from_lease(list(response.headers))
        if response.status_code in (204, 304) or any(
            name == b"transfer-encoding" for name, _ in response.headers
        ):
            headers = [(name, value) for name, value in headers if name != b"content-length"]
        headers += self._renewed
        self._is_told = True
        await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})

    async def _piece(self, data: bytes) -> None:
        self._visit.shown += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


def to_lease(headers: Headers, visit: AppVisit) -> Headers:
    """Return what a lease hears of a request: its own cookies, Host and Origin, and the app's token from here."""
    has_chunks = any(name == b"transfer-encoding" for name, _value in headers)
    kept = [
        (name, value)
        for name, value in without_hops(app_cookies.to_lease(headers))
        if name not in NOT_TO_LEASE and not name.startswith(b"x-forwarded-")
    ]
    secret = visit.app.authorization(visit.seat.uid, visit.seat.generation)
    if secret:
        kept = [
            *((name, value) for name, value in kept if name != b"authorization"),
            (b"authorization", secret),
        ]
    kept.append((b"x-forwarded-proto", b"https" if settings.BEHIND_TLS else b"http"))
    if has_chunks:
        kept.append((b"transfer-encoding", b"chunked"))
    return kept


def from_lease(headers: Headers) -> Headers:
    """Return what a browser hears of an answer."""
    return [
        (name, value)
        for name, value in without_hops(headers)
        if name not in NOT_FROM_LEASE and (name != b"set-cookie" or app_cookies.from_lease(value))
    ]


def address_of(headers: Headers) -> tuple[str, str] | None:
    """Return app and lease that a request names by its Host."""
    return app_hosts.parse(next((value.decode("latin-1") for name, value in headers if name == b"host"), ""))


def cookie_of(headers: Headers, app: App, lease: str) -> tuple[AppCookie | None, float]:
    """Return what the gateway's cookie says, as far as it was made for this very host, and its age in seconds."""
    found = app_cookies.unseal(app_cookies.own_cookie(headers))
    if found is None or (found[0].app, found[0].lease) != (app.name, lease):
        return None, 0.0
    return found[0], timezone.now().timestamp() - found[1]


def is_foreign(scope: AsgiMessage, headers: Headers) -> bool:
    """Say whether a page of another origin asks: it may lead here, and nothing else. Leases share a site."""
    found = dict(headers)
    own = b"://" + found.get(b"host", b"")
    origin = found.get(b"origin", b"")
    if origin and not origin.endswith(own) and (scope["type"] == "websocket" or scope["method"] not in SAFE):
        return True
    is_leading = found.get(b"sec-fetch-mode") == b"navigate" and found.get(b"sec-fetch-dest") == b"document"
    return found.get(b"sec-fetch-site") in FOREIGN and not (is_leading and scope.get("method") == "GET")


async def visit_or_code(cookie: AppCookie, app: App) -> AppVisit | str:
    """Return a cookie's visit, or the code of why there is none."""
    try:
        found = await visit_of(cookie, app)
    except TooManyError:
        return "too_many"
    except (DatabaseError, Unavailable) as no:
        log.warning("the right to an app could not be checked: %s", no)
        return "unavailable"
    return found.code if isinstance(found, SeatRefusal) else found


def waiting_page(visit: AppVisit, language: str) -> Page:
    """Return what is shown while an app is not ready."""
    if visit.word.state in (FAILED, ENDED):
        return app_pages.failed(visit.app, visit.word, visit.lines, language)
    return app_pages.progress(visit.app, visit.word, language)


def link_of(cookie: AppCookie | None) -> str:
    """Return the address of the lease's page, "" where it is not known."""
    return f"{cookie.portal}/leases/{cookie.lease}/" if cookie and cookie.portal else ""


async def _show(send: Send, page: Page) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        await send({"type": "http.response.start", "status": page.status, "headers": list(page.headers)})
        await send({"type": "http.response.body", "body": page.body})
