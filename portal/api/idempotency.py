"""A POST with an ``Idempotency-Key`` takes effect once; a repeat gets the first answer.

The key's row, the effect and the stored answer are one transaction: a process that dies leaves
either all of them or nothing. A repeat that runs at the same time waits for the first. Refusals
change nothing and are not stored, so a corrected call may use a fresh try. Calls without the
header pay nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import OperationalError, connection, transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.errors import IdempotencyMismatch, IdempotencyRunning
from portal.api.models import IdempotencyKey
from portal.common.errors import Invalid
from portal.common.failpoints import failpoint

HEADER = "Idempotency-Key"
KEEP = timedelta(hours=48)
MAX_LENGTH = 100
LOCK_TIMEOUT = "55P03"
Post = TypeVar("Post", bound=Callable[..., Response])


def once(post: Post) -> Post:
    """Make a view's ``post`` answer a repeated key with the first answer.

    What the view names in ``shown_once`` (secrets) is not stored: a repeat gets null there.
    """

    @functools.wraps(post)
    def wrapped(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get(HEADER)
        if key is None:
            return post(view, request, *args, **kwargs)
        if not 1 <= len(key) <= MAX_LENGTH or not key.isprintable():
            raise Invalid(fields={HEADER: _("Use 1 to 100 printable characters.")})
        try:
            answer = _once(key, request, lambda: post(view, request, *args, **kwargs), view.shown_once)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) == LOCK_TIMEOUT:
                raise IdempotencyRunning from error
            raise
        failpoint("keyed.committed")
        return answer

    wrapped.is_idempotent = True  # type: ignore[attr-defined]
    return wrapped  # type: ignore[return-value]


def digest(request: Request) -> bytes:
    """Return what makes two calls the same: method, path and the decoded body.

    Under the installation's key: a body may hold a password, which nobody must find by trying digests.
    """
    body = json.dumps(request.data, sort_keys=True, separators=(",", ":"))
    text = f"{request.method}\n{request.path}\n{body}"
    return salted_hmac("portal.api.idempotency", text, algorithm="sha256").digest()


@transaction.atomic
def _once(key: str, request: Request, run: Callable[[], Response], shown_once: Sequence[str]) -> Response:
    asked = digest(request)
    row = _claim(int(request.user.pk or 0), key, asked, timezone.now())
    if bytes(row.request_hash) != asked:
        raise IdempotencyMismatch
    if row.status is not None:
        return _again(row)
    response = run()
    location = response.headers.get("Location", "")
    body = {**response.data, **dict.fromkeys(shown_once)} if shown_once else response.data
    IdempotencyKey.objects.filter(pk=row.pk).update(status=response.status_code, body=body, location=location)
    failpoint("keyed.before_commit")
    return response


def _claim(principal: int, key: str, asked: bytes, now: datetime) -> IdempotencyKey:
    """Insert the key or wait for whoever did; returns its row locked."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO api_idempotencykey (principal_id, key, request_hash, location, created_at)"
            " VALUES (%s, %s, %s, '', %s) ON CONFLICT (principal_id, key) DO NOTHING",
            [principal, key, asked, now],
        )
        if cursor.rowcount and cursor.rowcount > 0:
            _forget(now)
    return IdempotencyKey.objects.select_for_update().get(principal_id=principal, key=key)


def _forget(now: datetime) -> None:
    """Drop a few keys that are older than two days, as new ones come in."""
    old = IdempotencyKey.objects.filter(created_at__lt=now - KEEP).order_by("created_at")
    ids = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:5])
    if ids:
        IdempotencyKey.objects.filter(pk__in=ids).delete()


def _again(row: IdempotencyKey) -> Response:
    response = Response(row.body, status=row.status)
    response["Idempotent-Replayed"] = "true"
    if row.location:
        response["Location"] = row.location
    return response
