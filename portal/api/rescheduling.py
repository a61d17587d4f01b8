"""Calls after which leases have to end at another time: first what was asked, then the leases.

Whoever touches nodes locks them last (``leases.lifecycle``). With an ``Idempotency-Key`` all that a view does is
one transaction, which would hold a node while it waits for leases, against the agents' reports that go the other
way; and nothing in it could be tried again. A retry with the same key would wait for all of it, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from rest_framework.request import Request
from rest_framework.response import Response

from portal.common.clock import db_now
from portal.leases.maintenance import follow

Post = TypeVar("Post", bound=Callable[..., Response])


def then_heed(post: Post) -> Post:
    """Let leases and bookings follow when a view's ``post`` is through; stands outside ``once``.

    A repeat heeds again: it changes nothing more. Where that fails or the process dies in between, the answer is
    true all the same, for the row is the work: the next tick heeds it.
    """

    @functools.wraps(post)
    def wrapped(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        response = post(view, request, *args, **kwargs)
        follow(now=db_now())
        return response

    return wrapped  # type: ignore[return-value]
