"""API tokens, notifications and the audit list over HTTP."""

from __future__ import annotations

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import ApiToken, Scope, SshKey
from portal.accounts.services import MAX_TOKEN_DAYS
from portal.accounts.ssh_keys import LONGEST_NAME, MOST_LINE
from portal.api.describe import PAGING, call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Text, Whole
from portal.api.filters import AuditFilters
from portal.api.idempotency import once
from portal.api.pagination import MAX_FEED_SIZE, PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.responses import (
    AuditAnswer,
    MarkedRead,
    NewTokenAnswer,
    NotificationAnswer,
    SshKeyAnswer,
    TokenAnswer,
)
from portal.api.wire import instant
from portal.audit.models import AuditEntry
from portal.audit.sign_ins import add_ssh_key, create_token, remove_ssh_key, revoke_token
from portal.leases.failures import public_fault
from portal.notifications.models import Notification
from portal.notifications.services import mark_read

TAG = "people"


class TokenBody(Body):
    """What a token may do and how long it lives."""

    name = Text(most=60)
    scopes = serializers.ListField(child=serializers.ChoiceField(Scope.choices), min_length=1, max_length=3)
    days = Whole(least=1, most=MAX_TOKEN_DAYS, default=30)


class Tokens(Endpoint):
    """One's own API tokens."""

    read_scope = Scope.ADMIN
    parameters = PARAMETERS
    shown_once = ("secret",)

    @call("List tokens", answer=TokenAnswer, is_list=True, parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """List one's own tokens, newest first; secrets are never shown again."""
        pages = Pages()
        rows = pages.page(ApiToken.objects.filter(user=self.person), request)
        return Response(pages.answer([token_row(row) for row in rows]))

    @call("Make a token", body=TokenBody, answer=NewTokenAnswer, status=201, refusals=(422,), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Make a token. Its secret is in this answer and nowhere else, also not in a repeated one."""
        made = create_token(user=self.person, now=timezone.now(), **self.take(TokenBody))
        body = {**token_row(made.row), "secret": made.secret}
        return Response(body, status=201, headers={"Location": "/api/v1/tokens/"})


class OneToken(Endpoint):
    """One of one's own tokens."""

    @call("Revoke a token", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """End one of one's own tokens at once. Safe to repeat."""
        revoke_token(user=self.person, token_id=key, now=timezone.now())
        return Response(status=204)


class SshKeyBody(Body):
    """A public key and how one calls it."""

    key = Text(most=MOST_LINE, help_text="One line of a .pub file.")
    name = Text(
        most=LONGEST_NAME, default="", allow_blank=True, help_text="The comment of the key where it is empty."
    )


class SshKeys(Endpoint):
    """One's own SSH keys."""

    read_scope = Scope.READ
    write_scope = Scope.LEASE_WRITE
    parameters = PARAMETERS

    @call("List SSH keys", answer=SshKeyAnswer, is_list=True, parameters=PAGING, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the public keys with which one comes into one's own leases by SSH, newest first."""
        pages = Pages()
        rows = pages.page(SshKey.objects.filter(user=self.person), request)
        return Response(pages.answer([ssh_key_row(row) for row in rows]))

    @call("Add an SSH key", body=SshKeyBody, answer=SshKeyAnswer, status=201, refusals=(422,), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Register a public key. Safe to repeat: a key that is there already is answered as it is."""
        row = add_ssh_key(user=self.person, now=timezone.now(), **self.take(SshKeyBody))
        return Response(ssh_key_row(row), status=201, headers={"Location": "/api/v1/ssh-keys/"})


class OneSshKey(Endpoint):
    """One of one's own SSH keys."""

    write_scope = Scope.LEASE_WRITE

    @call("Remove an SSH key", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """Forget one of one's own keys: nobody signs in with it from now on."""
        remove_ssh_key(user=self.person, key_id=key, now=timezone.now())
        return Response(status=204)


class Notifications(Endpoint):
    """What one should know."""

    parameters = PARAMETERS | {"unread"}

    @call(
        "List notifications", answer=NotificationAnswer, is_list=True, refusals=(422,), tag=TAG,
        parameters=(*PAGING, query("unread", "Only those not read yet, or only those read.", bool)),
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List one's own notifications, newest first."""
        pages = Pages()
        rows, is_unread = Notification.objects.filter(user=self.person), self.yes_or_no("unread")
        if is_unread is not None:
            rows = rows.filter(read_at__isnull=is_unread)
        return Response(pages.answer([notification_row(row) for row in pages.page(rows, request)]))


class MarkRead(Endpoint):
    """Mark what one has seen."""

    write_scope = Scope.LEASE_WRITE

    @call("Mark notifications as read", body=Empty, answer=MarkedRead, refusals=(422,), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Mark all of one's own notifications as read. Safe to repeat."""
        self.take(Empty)
        return Response({"marked": mark_read(self.person, at=timezone.now())})


class Audit(Endpoint):
    """Who did what."""

    parameters = AuditFilters.names()

    @call(
        "List audit entries", answer=AuditAnswer, is_list=True, parameters=AuditFilters.parameters(), tag=TAG
    )
    def get(self, request: Request) -> Response:
        """List who did what to which object, newest first. Operators."""
        self.require_operator()
        pages = Pages(most=MAX_FEED_SIZE)
        rows = self.narrow(AuditEntry.objects.select_related("actor"), AuditFilters)
        return Response(pages.answer([audit_row(row) for row in pages.page(rows, request)]))


def ssh_key_row(row: SshKey) -> Row:
    """Return a public key."""
    return {
        "id": row.pk,
        "name": row.name,
        "fingerprint": row.fingerprint,
        "key": row.public_key,
        "created_at": instant(row.created_at),
    }


def token_row(row: ApiToken) -> Row:
    """Return a token without its secret."""
    return {
        "id": row.pk,
        "name": row.name,
        "prefix": row.prefix,
        "scopes": list(row.scopes),
        "created_at": instant(row.created_at),
        "expires_at": instant(row.expires_at),
        "last_used_at": instant(row.last_used_at),
        "revoked_at": instant(row.revoked_at),
    }


def notification_row(row: Notification) -> Row:
    """Return a notification."""
    return {
        "id": row.pk,
        "kind": row.kind,
        "target": row.target.partition("#")[0],
        "facts": _public(row),
        "created_at": instant(row.created_at),
        "read_at": instant(row.read_at),
    }


def _public(row: Notification) -> Row:
    """Return its figures; older news of a failed lease kept what its node said, which may name what is others'."""
    facts: Row = row.facts
    if row.kind != "lease.failed":
        return facts
    return {**facts, "fault": public_fault(str(facts.get("fault", "")))}


def audit_row(row: AuditEntry) -> Row:
    """Return an audit entry; its actor must be at hand. None is Berth itself."""
    return {
        "id": row.pk,
        "actor": row.actor.username if row.actor else None,
        "action": row.action,
        "target": row.target,
        "detail": row.detail,
        "at": instant(row.at),
    }
