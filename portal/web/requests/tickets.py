"""One ticket per rendered form: a second click on the same page leads to what the first one made."""

from __future__ import annotations

import logging

from django.core.cache import cache
from django.http import HttpResponse
from django.shortcuts import redirect
from redis.exceptions import RedisError

log = logging.getLogger(__name__)
TICKET_S = 900


def first_use(mark: str) -> bool:
    """Say whether this is the first click; without a cache each one counts as the first."""
    try:
        return bool(cache.add(mark, "", TICKET_S))
    except RedisError:
        return True


def seen_before(mark: str) -> HttpResponse:
    """Lead to what the first click made, or to the list where that is not known."""
    uid = cache.get(mark)
    return redirect("web:request", uid) if uid else redirect("web:requests")


def remember(mark: str, uid: str) -> None:
    """Note what the first click made."""
    try:
        cache.set(mark, uid, TICKET_S)
    except RedisError:
        log.warning("a second click on this form would not be noticed")


def forget(mark: str) -> None:
    """Let the form be sent again: it was refused."""
    try:
        cache.delete(mark)
    except RedisError:
        log.warning("a form may have to be opened again before it can be sent")
