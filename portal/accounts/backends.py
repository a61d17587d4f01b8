"""Whom a name and a password, or a session, let in."""

from __future__ import annotations

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser

from portal.accounts.models import User
from portal.accounts.selectors import may_enter
from portal.common.rows import Rows

_PEOPLE = Rows(User)


class PeopleBackend(ModelBackend):
    """Django's own check of passwords; whoever may not enter is refused by password and by session alike."""

    def user_can_authenticate(self, user: AbstractBaseUser | AnonymousUser | None) -> bool:
        """Say whether this account may be used at all."""
        return isinstance(user, User) and may_enter(user)

    def get_user(self, user_id: int) -> User | None:
        """Return who a session belongs to, None for somebody who may not enter. Every page asks."""
        user = _PEOPLE.first("it.id = %s", [user_id])
        return user if user is not None and may_enter(user) else None
