"""A release: only with the page's own proof, and written down."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from portal.audit.models import AuditEntry
from portal.leases import lifecycle
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
# What speaks tokens instead of cookies brings its own proof; DRF asks a session for CSRF all the same.
NO_COOKIES = ("api/", "oauth/")


def test_a_release_without_the_pages_proof_is_refused_and_with_it_is_done(world: World) -> None:
    lease = world.active()
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(world.user("bob"))
    page = browser.get(f"/leases/{lease.uid}/").text
    form = re.search(rf'<form[^>]*action="/leases/{lease.uid}/release/".*?</form>', page, re.DOTALL)
    assert form is not None
    proof = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.group())
    assert proof is not None

    bare = browser.post(f"/leases/{lease.uid}/release/")
    foreign = browser.post(f"/leases/{lease.uid}/release/", {"csrfmiddlewaretoken": "x" * 64})
    lease.refresh_from_db()
    assert (bare.status_code, foreign.status_code, lease.state) == (403, 403, "active")

    shown = browser.post(f"/leases/{lease.uid}/release/", {"csrfmiddlewaretoken": proof.group(1)})
    lease.refresh_from_db()
    assert (shown.status_code, lease.state) == (302, "ending")


def test_no_page_does_without_the_proof() -> None:
    assert [at for at, view in _views(get_resolver()) if getattr(view, "csrf_exempt", False)] == []


def _views(resolver: URLResolver, before: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for entry in resolver.url_patterns:
        at = before + str(entry.pattern)
        if at.startswith(NO_COOKIES):
            continue
        if isinstance(entry, URLPattern):
            found.append((at, entry.callback))
        else:
            found += _views(entry, at)
    return found


def test_a_release_is_written_down_once_with_who_and_whose(world: World) -> None:
    lease = world.active()

    for _ in range(2):
        lifecycle.release_lease(lease=lease, actor=world.user("alice"), now=world.now)

    written = AuditEntry.objects.get(action="lease.released")
    assert (written.actor, written.target, written.team_id, written.at) == (
        world.user("alice"),
        lease.uid,
        lease.team_id,
        world.now,
    )
