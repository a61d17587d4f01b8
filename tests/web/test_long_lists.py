"""Lists of leases and requests go on from the row that was last, whatever their order and their filters."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from django.test import Client

from portal.leases import lists
from portal.leases.lists import ListQuery
from portal.leases.models import Lease, LeaseRequest
from portal.web import lists as pages
from tests.portal.builders import World

NEXT = r'rel="next" href="([^"]+)"'


def _walk(client: Client, path: str, pattern: str) -> list[list[str]]:
    """Return the uids of each page from the first on, as links lead."""
    found = []
    while path:
        text = client.get(path).content.decode()
        found.append(list(dict.fromkeys(re.findall(pattern, text.split('id="page-live"')[1]))))
        link = re.search(NEXT, text)
        path = path.partition("?")[0] + link[1].replace("&amp;", "&") if link else ""
    return found


@pytest.fixture
def past(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Seven leases of two people, some of them begun at the same instant, and pages of two."""
    monkeypatch.setattr(pages, "PER_PAGE", 2)
    for n in range(7):
        lease = world.ended("bob" if n % 3 else "alice", seconds=60)
        LeaseRequest.objects.filter(pk=lease.request_id).update(name=f"run {n}")
    with_ties = list(Lease.objects.order_by("pk"))
    for n, lease in enumerate(with_ties):
        Lease.objects.filter(pk=lease.pk).update(starts_at=world.now - timedelta(hours=9 - n // 2))
    return world


@pytest.mark.parametrize(("read", "orders", "over"), [
    (lists.lease_page, lists.LEASE_ORDERS, "ended"),
    (lists.request_page, lists.REQUEST_ORDERS, "fulfilled"),
])  # fmt: skip
def test_every_row_comes_once_whatever_the_order_and_back_again(past, read, orders, over):
    alice, teams = past.user("alice").pk, [team.pk for team in past.teams.values()]
    narrowed = ({}, {"user": alice}, {"states": (over,)}, {"states": ("active", "queued")}, {"text": "run"})

    def walked(query, toward):
        page = read(query)
        found = [page]
        while mark := getattr(page, toward):
            page = read(
                replace(
                    query,
                    **{"after": "", "before": "", {"next": "after", "previous": "before"}[toward]: mark},
                )
            )
            found.append(page)
        return found

    for query in (
        ListQuery(teams, way + order, 2, **how) for order in orders for way in ("", "-") for how in narrowed
    ):
        there = [row.uid for page in walked(query, "next") for row in page.rows]
        turned = query.ordering.removeprefix("-") if query.ordering.startswith("-") else f"-{query.ordering}"
        count = 3 if query.user else 0 if "active" in query.states else 7
        assert len(there) == len(set(there)) == count, query
        if query.text:
            continue  # names are looked through by id
        assert [
            row.uid for page in walked(replace(query, ordering=turned), "next") for row in page.rows
        ] == there[::-1]
        if there:
            back = walked(replace(query, before=there[-1]), "previous")
            assert [row.uid for page in back[::-1] for row in page.rows] == there[:-1], query


def test_a_name_is_looked_for_in_parts_and_a_strangers_row_is_no_mark(past, signed_in, monkeypatch):
    monkeypatch.setattr(lists, "LOOKED_THROUGH", 3)
    client = signed_in("alice")
    foreign = past.ended("charlie", seconds=60)

    assert [len(page) for page in _walk(client, "/leases/?q=run+1", r"/leases/(lse-\w{16})/")] == [0, 1, 0]
    assert "Search further back" in client.get("/leases/?q=run+1").content.decode()
    assert _walk(client, f"/leases/?after={foreign.uid}", r"/leases/(lse-\w{16})/") == _walk(
        client, "/leases/", r"/leases/(lse-\w{16})/"
    )
    assert client.get("/leases/?after=%25&q=%25").status_code == 200
