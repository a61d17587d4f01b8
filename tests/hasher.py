"""Passwords hashed as in production, by Argon2 id, with a thousandth of its work: tests sign in by the hundred."""

from __future__ import annotations

from django.contrib.auth.hashers import Argon2PasswordHasher


class QuickArgon2(Argon2PasswordHasher):
    """The same format and the same steps; its parameters are written into each hash, so either reads the other's."""

    time_cost, memory_cost, parallelism = 1, 8, 1
