from __future__ import annotations

from datetime import datetime

from portal.accounts.models import ApiToken
from portal.accounts.services import TOKEN_MARK, digest_of


def live_token(secret: str, *, now: datetime) -> ApiToken | None:
    """Return the token with this secret when it is neither expired nor revoked and its owner is active."""
    if not secret.startswith(TOKEN_MARK) or len(secret) > 100:
        return None
    return (
        ApiToken.objects.select_related("user")
        .filter(digest=digest_of(secret), revoked_at=None, expires_at__gt=now, user__is_active=True)
        .first()
    )
