from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from portal.accounts.models import ApiToken, User
from portal.accounts.selectors import live_token

LAST_USED_EVERY = timedelta(minutes=1)


class TokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer bth_…`` with a token that is alive."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """Return the owner and the token, None without the header, or raise for a dead token."""
        kind, _sep, secret = get_authorization_header(request).decode("latin-1").partition(" ")
        if kind.lower() != "bearer":
            return None
        now = timezone.now()
        token = live_token(secret.strip(), now=now)
        if token is None:
            raise AuthenticationFailed(
                "This token is unknown, expired or revoked. Make a new one under API tokens."
            )
        if token.last_used_at is None or now - token.last_used_at > LAST_USED_EVERY:
            ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge that makes a missing token a 401."""
        return 'Bearer realm="berth"'
