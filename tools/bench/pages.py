"""Pages and lists at size: server time and queries of every page, of the same lists by the API, of quotes.

``python -m tools.bench.pages`` wants DATABASE_URL and REDIS_URL of servers it may make a database on. BENCH_LEASES says
how many ended leases there are. Times are wall-clock within one process, the database's included; beside them stands
the least CPU time of the process, which other work on the machine hardly changes.
"""

from __future__ import annotations

import gzip
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from threading import Thread
from typing import Any

from tools.bench.own_database import measured_apart, print_measured

LEASES = int(os.environ.get("BENCH_LEASES", "100000"))
ONLY = os.environ.get("BENCH_ONLY", "")  # a word that names of pages must have, while working on one
WARM_UP, VIEWS, LONGEST_S, QUOTES = 2, 20, 0.8, 100
MUST_MS, MUST_QUOTE_MS, MUST_CALENDAR_MS, MUST_PER_S, MUST_KB = 150, 300, 300, 60, 150
MOST_USED = ("/", "/requests/new/", "/leases/", "/leases/{lease}/", "/requests/")
CONNECTIONS, SERVED_S, FIRST_PORT = 4, 8.0, 18600
API = "/api/v1"
# Who opens what; braces are filled with the objects of ``_objects``.
PAGES: dict[str, tuple[str, ...]] = {
    "bob": (
        "/", "/search/?q=run+1", "/requests/new/", "/requests/quote/?team=team-1&flavor=a100&count=1&duration=4+h",
        "/requests/", "/requests/?state=open", "/requests/?q=run+77",
        "/requests/?after={deep_request}", "/requests/{waiting}/", "/requests/{granted}/?show=request",
        "/requests/{over}/?show=request",
        "/forecasts/", "/leases/", "/leases/?whose=mine&state=ended", "/leases/?after={deep_lease}", "/leases/{lease}/",
        "/leases/{ended}/", "/jobs/", "/calendar/", "/calendar/mine.ics", "/reservations/", "/reservations/{series}/",
        "/notifications/", "/notifications/?page=9999", "/cluster/", "/cluster/{node}/", "/teams/team-1/",
        "/invoices/", "/invoices/team-1/{month}/", "/invoices/team-1/{past_month}/", "/tokens/", "/contact-points/",
        "/ssh-keys/", "/sessions/", "/profile/", "/leases/{lease}/processes/",
    ),
    "alice": (
        "/", "/leases/", "/leases/?after={deep_lease}", "/requests/", "/teams/", "/teams/department-1/",
        "/teams/team-1/",
        "/teams/team-1/quota/", "/teams/department-1/new/", "/teams/team-1/templates/", "/teams/team-1/settings/",
        "/teams/team-1/images/", "/teams/team-1/people/new/", "/invoices/", "/invoices/department-1/{month}/",
    ),
    "approver": ("/", "/approvals/"),
    "finance": (
        "/", "/invoices/", "/invoices/?month={past_month}", "/reports/", "/reports/?month={past_month}",
        "/reports/?by=person", "/reports/?by=person&month={past_month}", "/reports/?by=cost_centre",
        "/reports/energy/", "/reports/energy/?month={past_month}",
        "/invoices/bench/{month}/", "/invoices/team-1/{month}/lines/{key}/", "/finance/months/",
        "/finance/months/{past_month}/", "/finance/months/{past_month}/rehearsal/", "/finance/prices/",
        "/finance/capacity/", "/finance/months/{past_month}/capacity/", "/finance/notes/", "/finance/refunds/",
        "/finance/discounts/",
        "/teams/team-1/budget/", "/teams/team-1/budget/new/",
    ),
    "operator": (
        "/", "/?range=7d", "/search/?q=run+1", "/leases/", "/leases/?after={deep_lease}",
        "/leases/?before={deep_lease}", "/leases/?ordering=started", "/leases/?ordering=ends", "/leases/?ordering=team",
        "/leases/?ordering=team&after={deep_lease}", "/leases/?state=live",
        "/leases/?state=ended", "/leases/?state=failed", "/leases/?team=team-1", "/leases/?team=team-200&state=ended",
        "/leases/?q=run+777", "/leases/?q=nothing-like-it", "/leases/?whose=mine", "/requests/",
        "/requests/?after={deep_request}",
        "/requests/?ordering=team", "/requests/?ordering=-quote",
        "/requests/?state=queued", "/requests/?state=fulfilled", "/requests/?state=rejected",
        "/requests/?q=nothing-like-it", "/forecasts/", "/cluster/", "/cluster/{node}/", "/calendar/?view=day",
        "/teams/", "/teams/bench/", "/jobs/", "/operations/nodes/", "/operations/nodes/{node}/drain/",
        "/operations/maintenance/", "/operations/maintenance/{window}/", "/operations/flavors/",
        "/operations/flavors/a100/", "/operations/policies/", "/operations/policies/edit/",
        "/operations/policies/json/",
        "/operations/policies/1/", "/operations/policies/compare/?a=1&b=1", "/operations/cycles/",
        "/operations/cohorts/", "/operations/audit/", "/operations/audit/?page=1000", "/setup/",
    ),
}  # fmt: skip
LISTS: dict[str, tuple[str, ...]] = {
    "bob": (
        "/leases/", "/leases/?cursor={deep}", "/requests/", "/requests/?cursor={deep}", "/usage/", "/notifications/",
        "/jobs/", "/teams/", "/teams/team-1/spend/", "/invoices/team-1/{month}/", "/search/?q=run+1",
    ),
    "operator": (
        "/leases/", "/leases/?cursor={deep}", "/leases/?ordering=id", "/leases/?ordering=id&cursor={deep}",
        "/leases/?state=ended&cursor={deep}", "/leases/?state=active", "/leases/?state=failed",
        "/leases/?team=team-200", "/leases/?user=person-3", "/leases/?end_reason=fault", "/leases/?node={node}",
        "/leases/?flavor=1g-10gb&cursor={deep}", "/requests/", "/requests/?cursor={deep}", "/requests/?state=queued",
        "/requests/?state=rejected", "/requests/?team=team-200", "/requests/?author=person-3", "/lease-events/",
        "/lease-events/?cursor={deep}", "/usage/", "/usage/?cursor={deep}", "/usage/?team=team-200",
        "/usage/?user=person-3", "/audit/", "/audit/?cursor={deep}", "/fleet/accounting/", "/teams/", "/nodes/",
        "/devices/", "/map/", "/availability/", "/invoices/", "/utilisation/", "/forecasts/calibration/",
        "/teams/bench/spend/", "/teams/bench/spend/days/", "/teams/bench/members/",
    ),
    "finance": (
        "/reports/{month}/", "/reports/{past_month}/", "/reports/{month}/energy/", "/reports/{past_month}/energy/",
    ),
}  # fmt: skip


def measure() -> dict[str, Any]:
    # The web process has to know this one's sessions.
    return measured_apart("tools.bench.pages", {"BERTH_SECRET_KEY": secrets.token_hex(48)})


def _measured() -> dict[str, Any]:
    from portal.billing.electricity import count_electricity
    from portal.billing.models import BillingPeriod
    from portal.common.clock import db_now
    from portal.common.invariants import broken
    from portal.fleet.models import Node
    from tools.bench import history

    began = time.perf_counter()
    history.make(LEASES, db_now())
    for period in BillingPeriod.objects.all():  # as the worker of an installation does
        count_electricity(period, now=db_now())
    found: dict[str, Any] = {
        "seeded": f"{LEASES:,} ended leases, {history.WAITING:,} waiting, {history.TEAMS} teams, "
        f"{8 * sum(history.NODES.values()):,} GPUs in {time.perf_counter() - began:.0f} s"
    }
    if breaches := [f"{one.invariant.name}: {', '.join(one.offenders[:3])}" for one in broken()]:
        raise RuntimeError(f"what was seeded breaks promises: {'; '.join(breaches)}")
    Node.objects.update(last_seen_at=db_now())
    objects, worst = _objects(), {}
    with _published():
        for title, prefix, table in (("page", "", PAGES), ("API", API, LISTS)):
            for who, addresses in table.items():
                client = _client(who)
                for address in addresses:
                    path = prefix + address.format(**objects)
                    if ONLY in path:
                        must = MUST_CALENDAR_MS if "calendar" in path else MUST_MS
                        times, cpu, queries = _views(lambda path=path, client=client: client.get(path))  # type: ignore[misc]
                        found[f"{title} {who} {address}"] = _row(times, cpu, queries, must)
                        worst[f"{who} {prefix}{address}"] = times
        if not ONLY:
            found["quote"] = _quotes(objects)
            found["not measured"] = ", ".join(_left_out()) or "nothing"
            found |= _served(objects)
    over = [name for name, times in worst.items() if _at(times, 95) > MUST_MS and "calendar" not in name]
    found["pages and lists"] = f"{len(worst)}, of which {len(over)} over {MUST_MS} ms: {'; '.join(over)}"
    return found


@contextmanager
def _published() -> Iterator[None]:
    """Keep the fleet's picture published, as the worker of an installation does."""
    from django.db import connection

    from portal.common.clock import db_now
    from scheduler.cycle import publish_snapshot

    going = True

    def renew() -> None:
        until = 0.0
        while going:
            if time.monotonic() > until:
                until = time.monotonic() + 40
                publish_snapshot(now=db_now())
            time.sleep(0.1)
        connection.close()

    publish_snapshot(now=db_now())
    keeper = Thread(target=renew)
    keeper.start()
    try:
        yield
    finally:
        going = False
        keeper.join()


def _client(who: str) -> Any:
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client(raise_request_exception=False)
    client.force_login(get_user_model().objects.get(username=who))
    return client


def _objects() -> dict[str, str]:
    """Return the names of what addresses are about."""
    from portal.billing.models import BillingPeriod, UsageTotal
    from portal.billing.selectors import draft_lines
    from portal.fleet.models import MaintenanceWindow, Node
    from portal.leases.models import Lease, LeaseRequest, Reservation

    months = list(BillingPeriod.objects.order_by("-starts_at"))
    totals = UsageTotal.objects.filter(period=months[0], team__slug="team-1").select_related(
        "user", "flavor__device_model", "late_for"
    )
    own, asked = (
        Lease.objects.filter(user__username="bob"),
        LeaseRequest.objects.filter(author__username="bob"),
    )
    return {
        "lease": own.filter(state="active").latest("id").uid,
        "ended": own.filter(state="ended").latest("id").uid,
        "waiting": asked.filter(state="queued").latest("id").uid,
        "granted": asked.filter(state="granted").latest("id").uid,
        "over": asked.filter(state="fulfilled").latest("id").uid,
        "series": Reservation.objects.get().uid,
        "window": MaintenanceWindow.objects.get().uid,
        "node": Node.objects.latest("id").name,
        "month": str(months[0]),
        "past_month": str(months[1]),
        "key": draft_lines(totals)[0][0].key,
        "deep": str(LEASES // 2),
        "deep_lease": own.filter(state="ended").order_by("id")[20].uid,
        "deep_request": asked.filter(state="fulfilled").order_by("id")[20].uid,
    }


def _views(view: Callable[[], Any]) -> tuple[list[float], float, int]:
    """Return the milliseconds of each view, sorted, the least CPU time of one, and the queries of the last."""
    from django.db import connection

    count = 0

    def counting(execute: Any, *rest: Any) -> Any:
        nonlocal count
        count += 1
        return execute(*rest)

    times: list[float] = []
    least = float("inf")
    until = time.perf_counter() + LONGEST_S
    with connection.execute_wrapper(counting):
        while len(times) < WARM_UP + VIEWS and (len(times) < WARM_UP + 2 or time.perf_counter() < until):
            count, began, cpu = 0, time.perf_counter(), time.thread_time()
            answer = view()
            body = b"".join(answer.streaming_content) if answer.streaming else answer.content
            times.append((time.perf_counter() - began) * 1000)
            least = min(least, (time.thread_time() - cpu) * 1000)
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.wsgi_request.path}: {answer.status_code} {body[:300]!r}")
    return sorted(times[WARM_UP:]), least, count


def _at(times: list[float], percent: int) -> float:
    return times[min(len(times) - 1, len(times) * percent // 100)]


def _row(times: list[float], cpu: float, queries: int, must: int) -> str:
    miss = f"   over {must} ms" if _at(times, 95) > must else ""
    wall = f"least {times[0]:.0f} / p50 {_at(times, 50):.0f} / p95 {_at(times, 95):.0f} ms"
    return f"{wall}, CPU {cpu:.0f} ms, {queries} queries{miss}"


def _quotes(objects: dict[str, str]) -> str:
    """Ask for what nobody submits, with forecast and counter-offers."""
    client, times = _client("bob"), []
    kinds = [
        {"flavor": flavor, "count": count, "duration_s": hours * 3600, "team": "team-1"}
        for flavor, counts in (
            ("a100", (1, 2, 4, 8)),
            ("1g-10gb", (1,)),
            ("2g-20gb", (1,)),
            ("3g-40gb", (1,)),
        )
        for count in counts
        for hours in (1, 4, 24)
    ]
    client.post(f"{API}/quote/", kinds[0], content_type="application/json")
    for at in range(QUOTES):
        began = time.perf_counter()
        answer = client.post(f"{API}/quote/", kinds[at % len(kinds)], content_type="application/json")
        times.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, answer.content
    times.sort()
    miss = f"   over {MUST_QUOTE_MS} ms" if _at(times, 99) > MUST_QUOTE_MS else ""
    return f"p50 {_at(times, 50):.0f} / p99 {_at(times, 99):.0f} ms of {QUOTES}{miss}"


def _left_out() -> list[str]:
    """Return the routes that answer a GET and have no address in ``PAGES``; who is signed in is led off sign_in."""
    from django.urls import get_resolver, resolve

    seen = {
        resolve(re.sub(r"{\w+}", "1", one).partition("?")[0]).url_name
        for row in PAGES.values()
        for one in row
    }
    client, found = _client("operator"), []
    patterns: list[Any] = get_resolver("portal.web.urls").url_patterns
    for pattern in patterns:
        path = "/" + re.sub(r"<(int|str|slug):\w+>", "1", str(pattern.pattern))
        if pattern.name not in {*seen, "sign_in"} and client.get(path).status_code not in (404, 405):
            found.append(str(pattern.name))
    return sorted(set(found))


def _served(objects: dict[str, str]) -> dict[str, str]:
    """Start one web process on the same database; measure pages a second, and the bytes of a first visit."""
    from django.conf import settings
    from django.db import connection

    from portal.embedded.ports import listen

    cookie = f"{settings.SESSION_COOKIE_NAME}={_client('bob').cookies[settings.SESSION_COOKIE_NAME].value}"
    sock = listen("127.0.0.1", FIRST_PORT)
    port = sock.getsockname()[1]
    url = re.sub(
        r"/[^/?]+(\?|$)", rf"/{connection.settings_dict['NAME']}\1", os.environ["DATABASE_URL"], count=1
    )
    # As the embedded stack serves them; the process takes the socket over.
    serve = "import socket, sys; from portal.embedded.programs import serve_web;"
    serve += "serve_web(socket.socket(fileno=int(sys.argv[1])))"
    server = subprocess.Popen(
        [sys.executable, "-c", serve, str(sock.fileno())],
        env={**os.environ, "DATABASE_URL": url}, pass_fds=[sock.fileno()],
    )  # fmt: skip
    sock.close()
    try:
        paths = [path.format(**objects) for path in MOST_USED]
        return {
            "pages a second": _rate(port, cookie, paths),
            "first page": _first_visit(port, cookie),
        }
    finally:
        server.terminate()
        server.wait(20)


def _rate(port: int, cookie: str, paths: list[str]) -> str:
    """Return how many pages a second one web process serves to a few browsers that always want the next."""
    done: list[int] = []

    def browse() -> None:
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as line:
            count = 0
            while time.monotonic() < until:
                line.request("GET", paths[count % len(paths)], headers={"Cookie": cookie})
                answer = line.getresponse()
                answer.read()
                assert answer.status == 200, (paths[count % len(paths)], answer.status)
                count += 1
            done.append(count)

    until = time.monotonic() + 2  # a first round that counts for nothing
    browse()
    done.clear()
    until = time.monotonic() + SERVED_S
    readers = [Thread(target=browse) for _ in range(CONNECTIONS)]
    for one in readers:
        one.start()
    for one in readers:
        one.join()
    rate = sum(done) / SERVED_S
    return f"{rate:.0f} of the five most used pages{'' if rate >= MUST_PER_S else f'   below {MUST_PER_S}'}"


def _first_visit(port: int, cookie: str) -> str:
    """Return the bytes of the home and of everything it names, as a browser that takes gzip gets them."""
    sizes: dict[str, int] = {}
    waiting = ["/"]
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as line:
        while waiting:
            path = waiting.pop()
            line.request("GET", path, headers={"Cookie": cookie, "Accept-Encoding": "gzip"})
            answer = line.getresponse()
            body = answer.read()
            sizes[path] = len(body)
            kind = answer.headers.get_content_type()
            if kind in ("text/html", "text/css", "text/javascript"):
                plain = gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body
                named = re.findall(r"[\"'(](/static/[^\"')#?]+)", plain.decode())
                waiting += [one for one in set(named) if one not in sizes and one not in waiting]
    whole = sum(sizes.values()) / 1000
    most = ", ".join(f"{path.rpartition('/')[2] or path} {size / 1000:.0f}" for path, size in
                     sorted(sizes.items(), key=lambda pair: -pair[1])[:5])  # fmt: skip
    miss = "" if whole <= MUST_KB else f"   over {MUST_KB} KB"
    return f"{whole:.0f} KB in {len(sizes)} files ({most}){miss}"


if __name__ == "__main__":
    print_measured(_measured)
