from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db.models import Q

from portal.accounts.models import ApiToken, User
from portal.accounts.services import TOKEN_MARK, digest_of


def may_enter(user: User) -> bool:
    """Say whether an account may be used: active, and no account of the demo while the demo is off."""
    return user.is_active and (settings.DEMO or not user.is_demo)


def entering(prefix: str = "") -> Q:
    """Return the condition of ``may_enter`` for a query; ``prefix`` leads to the account, as in ``user__``."""
    allowed = Q(**{f"{prefix}is_active": True})
    return allowed if settings.DEMO else allowed & Q(**{f"{prefix}is_demo": False})


def live_token(secret: str, *, now: datetime) -> ApiToken | None:
    """Return the token with this secret when it is neither expired nor revoked and its owner may enter."""
    if not secret.startswith(TOKEN_MARK) or len(secret) > 100:
        return None
    return (
        ApiToken.objects.select_related("user")
        .filter(entering("user__"), digest=digest_of(secret), revoked_at=None, expires_at__gt=now)
        .first()
    )
