"""Whom a name and a password, or a session, let in."""

from __future__ import annotations

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser

from portal.accounts.models import User
from portal.accounts.selectors import may_enter


class PeopleBackend(ModelBackend):
    """Django's own check of passwords; whoever may not enter is refused by password and by session alike."""

    def user_can_authenticate(self, user: AbstractBaseUser | AnonymousUser | None) -> bool:
        """Say whether this account may be used at all."""
        return isinstance(user, User) and may_enter(user)
