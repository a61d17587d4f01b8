from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.core.cache import cache
from django.test import Client

from portal.accounts.sessions import SessionStore
from portal.common.live import redis_client
from portal.leases.forecasting import SNAPSHOT_KEY
from scheduler import snapshot
from scheduler.engine import snapshot_to_json
from tests.portal.builders import World
from tests.portal.conftest import world  # noqa: F401
from tests.portal.shared import shared  # noqa: F401

SignedIn = Callable[[str], Client]
Publish = Callable[[datetime], None]


@pytest.fixture
def signed_in(world: World) -> SignedIn:  # noqa: F811
    """A browser of somebody in the world, signed in.

    Its session is what signing in leaves, written in one step: a test in five begins with it, and Django's
    ``force_login`` makes a session, then another one and takes the first away.
    """

    def browser(name: str) -> Client:
        person, client, session = world.user(name), Client(), SessionStore()
        session[SESSION_KEY] = str(person.pk)
        session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
        session[HASH_SESSION_KEY] = person.get_session_auth_hash()
        session.create()
        client.cookies[settings.SESSION_COOKIE_NAME] = session.session_key
        return client

    return browser


@pytest.fixture(autouse=True)
def clean_cache(request: pytest.FixtureRequest) -> None:
    """No tries, tickets or pictures of another test."""
    if "world" in request.fixturenames:
        cache.clear()
        redis_client().delete(SNAPSHOT_KEY)


@pytest.fixture
def publish() -> Publish:
    """Publish the picture that forms and pages forecast on, as a scheduling turn does."""

    def put(now: datetime) -> None:
        redis_client().set(SNAPSHOT_KEY, snapshot_to_json(snapshot.take(now=now)))

    return put
