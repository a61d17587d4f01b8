"""Tokens for the people of the demo: from a file, or made in the database of the stack on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from django.db import DatabaseError, connection

from portal.accounts.models import ApiToken, Scope, User
from portal.audit.sign_ins import create_token
from portal.common.clock import db_now

OPERATOR = "operator"
TOKEN_NAME = "trace play"  # noqa: S105 (a name people read in the list)


class NoTokens(Exception):
    """No tokens can be had; the sentence says what to do."""


def tokens_from(path: Path, people: Iterable[str]) -> dict[str, str]:
    """Return tokens by person from a JSON object; raises NoTokens naming whoever is missing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NoTokens(f"{path} is not a JSON object of people and their tokens: {error}") from error
    missing = [p for p in people if not isinstance(found, dict) or not isinstance(found.get(p), str)]
    if missing:
        raise NoTokens(f"{path} holds no token of {', '.join(missing)}")
    return {person: found[person] for person in people}


def make_tokens(people: Iterable[str]) -> dict[str, str]:
    """Return fresh one-day tokens by person, earlier ones of this command ended; raises NoTokens."""
    try:
        now = db_now()
        users = {user.username: user for user in User.objects.filter(username__in=list(people))}
        missing = [person for person in people if person not in users]
        if missing:
            raise NoTokens(f"the portal's database knows no {', '.join(missing)}: is this the demo?")
        old = ApiToken.objects.filter(name=TOKEN_NAME, user__in=users.values(), revoked_at=None)
        old.filter(created_at__lt=now - timedelta(days=1)).update(revoked_at=now)
        scopes = [Scope.READ.value, Scope.LEASE_WRITE.value]
        return {
            name: create_token(user=user, name=TOKEN_NAME, scopes=scopes, days=1, now=now).secret
            for name, user in users.items()
        }
    except DatabaseError as error:
        raise NoTokens(
            f"the portal's database cannot be asked for tokens ({str(error).strip().splitlines()[0]}): "
            "start the stack with `make up`, set BERTH_DATA as it was set there, or give --tokens FILE"
        ) from error
    finally:
        connection.close()
