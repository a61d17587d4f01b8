from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common import outbox
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.policies.faults import invalid
from portal.policies.models import Policy
from portal.policies.rules import OFFERED
from portal.policies.selectors import policy_of
from portal.teams.selectors import Rights
from scheduler.engine.model import PolicyRules
from scheduler.engine.policy_body import BadPolicy, Fault, body_of, policy_from

MOST_NAME, MOST_NOTE = 60, 200


def whole_body(body: Any) -> dict[str, Any]:
    """Return a body with every rule named; raises BadPolicy with its faults, yardsticks as strategies among them."""
    whole = body_of(policy_from(body))
    faults = [
        Fault(key, "not_known", (("known", ", ".join(sorted(names))),))
        for key, names in OFFERED.items()
        if whole[key] not in names
    ]
    if faults:
        raise BadPolicy(faults)
    return whole


def check_body(body: Any) -> dict[str, Any]:
    """Return a body with every rule named, or raise Invalid with every fault at its field. Changes nothing."""
    try:
        return whole_body(body)
    except BadPolicy as error:
        raise invalid(error) from error


@transaction.atomic
def save_policy(
    *,
    actor: User,
    rights: Rights,
    name: str,
    body: Mapping[str, Any],
    note: str,
    based_on: int,
    now: datetime,
    is_active: bool = True,
) -> Policy:
    """Store rules as a new version and put it in force unless it is a draft. Operators.

    ``based_on`` is the version that was active when the edit began (0: none was stored). Raises Forbidden,
    Invalid, or Conflict when another version was put in force since. Locks the active version.
    """
    _require_operator(rights)
    name, note = name.strip(), note.strip()
    _check_texts(name, note)
    whole = check_body(body)
    active = _locked(based_on)
    if active is not None and is_active and active.name == name and _same(active, whole):
        raise Invalid(fields={"body": _("Nothing was changed: these rules are active already.")})
    row = _new(actor, name, whole, note, active.version if active else None, now)
    if is_active:
        _put_in_force(actor, row, active, now)
    return row


@transaction.atomic
def activate(*, actor: User, rights: Rights, version: int, based_on: int, now: datetime) -> Policy:
    """Put a stored version in force. Operators; safe to repeat with the same ``based_on`` only.

    Raises Forbidden, NotFound, and Conflict when another version was put in force since, when this one is in
    force already, or when it no longer validates.
    """
    _require_operator(rights)
    row = _sound_version(version)
    active = _locked(based_on)
    if row.is_active:
        raise Conflict(_("Version %(version)d is active already.") % {"version": version})
    _put_in_force(actor, row, active, now)
    return row


@transaction.atomic
def roll_back(
    *, actor: User, rights: Rights, to: int, based_on: int, now: datetime, note: str = ""
) -> Policy:
    """Make a new version with the rules of an old one and put it in force. Operators; errors as in ``activate``."""
    _require_operator(rights)
    old = _sound_version(to)
    active = _locked(based_on)
    if old.is_active:
        raise Conflict(_("Version %(version)d is active already.") % {"version": to})
    said = note.strip() or _("Back to version %(version)d") % {"version": to}
    _check_texts(old.name, said)
    row = _new(actor, old.name, body_of(policy_of(old)), said, to, now)
    _put_in_force(actor, row, active, now)
    return row


def _require_operator(rights: Rights) -> None:
    if not rights.is_operator:
        raise Forbidden(_("Only operators change policies."))


def _check_texts(name: str, note: str) -> None:
    fields = {}
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        fields["name"] = _("Give it a name of at most %(most)d characters.") % {"most": MOST_NAME}
    if len(note) > MOST_NOTE or "\x00" in note:
        fields["note"] = _("At most %(most)d characters.") % {"most": MOST_NOTE}
    if fields:
        raise Invalid(fields=fields)


def _locked(based_on: int) -> Policy | None:
    """Lock the active version; raises Conflict when it is another than the edit began with."""
    active = Policy.objects.select_for_update().filter(is_active=True).first()
    if (active.version if active else 0) != based_on:
        raise Conflict(
            _("Another version was activated since you opened this. Look at it, then decide again.")
        )
    return active


def _same(row: Policy, whole: Mapping[str, Any]) -> bool:
    try:
        return body_of(policy_of(row)) == whole
    except BadPolicy:
        return False


def _sound_version(version: int) -> Policy:
    row = Policy.objects.filter(version=version).first()
    if row is None:
        raise NotFound
    try:
        policy_of(row)
    except BadPolicy as error:
        first = invalid(error).fields[error.field or "body"][0]["detail"]
        raise Conflict(
            _("Version %(version)d cannot decide any more: %(field)s – %(why)s")
            % {"version": version, "field": error.field or "body", "why": first}
        ) from error
    return row


def _new(
    actor: User, name: str, whole: Mapping[str, Any], note: str, based_on: int | None, now: datetime
) -> Policy:
    last = Policy.objects.aggregate(last=Max("version"))["last"] or 0
    try:
        with transaction.atomic():
            row = Policy.objects.create(
                name=name, version=last + 1, body=whole, created_at=now, made_by=actor, note=note, based_on=based_on
            )  # fmt: skip
    except IntegrityError as error:
        raise Conflict(
            _("Somebody saved a version at the same moment. Look at it, then try again.")
        ) from error
    record(actor, "policy.saved", _target(row), at=now, version=row.version, based_on=based_on, note=note)
    return row


def _put_in_force(actor: User, row: Policy, active: Policy | None, now: datetime) -> None:
    if active is not None:
        Policy.objects.filter(pk=active.pk).update(is_active=False)
    try:
        with transaction.atomic():
            Policy.objects.filter(pk=row.pk).update(is_active=True, activated_at=now)
    except IntegrityError as error:
        raise Conflict(_("Somebody activated a version at the same moment.")) from error
    row.is_active, row.activated_at = True, now
    before = active.version if active else None
    record(actor, "policy.activated", _target(row), at=now, version=row.version, before=before)
    outbox.add(outbox.RUN_CYCLE, key=f"policy-{row.version}", at=now)
    outbox.nudge_on_commit(outbox.RUN_CYCLE)


def _target(row: Policy) -> str:
    return f"policy v{row.version}"


def built_in() -> dict[str, Any]:
    """Return the rules that decide while no version is stored, with every rule named."""
    return body_of(PolicyRules())
