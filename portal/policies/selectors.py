from __future__ import annotations

import logging
from dataclasses import dataclass

from portal.common.rows import Rows
from portal.policies.models import Policy
from scheduler.engine.model import PolicyRules
from scheduler.engine.policy_body import BadPolicy, policy_from

_POLICIES = Rows(Policy)
log = logging.getLogger(__name__)
LOOK_BACK = 50
_told: set[int] = set()  # versions whose faults this process has logged already


@dataclass(frozen=True, slots=True)
class InForce:
    """Which policy decides; ``row`` is the active version, ``faults`` why it does not decide itself."""

    policy: PolicyRules
    row: Policy | None
    faults: BadPolicy | None = None


def active_policy() -> PolicyRules:
    """Return the policy that decides, as the engine takes it; the built-in one when none is stored."""
    return in_force().policy


def in_force() -> InForce:
    """Return which policy decides.

    A version of older days that no longer validates does not stop the turns: the one that was in force
    before it decides, in the end the built-in one.
    """
    row = _POLICIES.first("it.is_active", [])
    if row is None:
        return InForce(PolicyRules(), None)
    try:
        return InForce(policy_of(row), row)
    except BadPolicy as error:
        if row.version not in _told:
            _told.add(row.version)
            log.exception("policy version %d cannot decide; going by an earlier one", row.version)
        return InForce(_last_sound(row), row, error)


def active_version() -> int:
    """Return the number of the active version, 0 for the built-in policy."""
    found = Policy.objects.filter(is_active=True).values_list("version", flat=True).first()
    return found or 0


def policy_of(row: Policy) -> PolicyRules:
    """Return a stored version as the engine takes it; raises BadPolicy."""
    return policy_from(row.body, name=row.name, version=row.version)


def _last_sound(row: Policy) -> PolicyRules:
    """Return the version that was put in force last before this one and validates, else the built-in policy."""
    earlier = Policy.objects.exclude(pk=row.pk).exclude(activated_at=None)
    for before in earlier.order_by("-activated_at", "-version")[:LOOK_BACK]:
        try:
            return policy_of(before)
        except BadPolicy:
            continue
    return PolicyRules()
