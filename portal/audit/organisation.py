"""Teams and people, made, changed and written down. Here because the audit list lies above teams."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.tokens import default_token_generator
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_decode, urlsafe_base64_encode
from django.utils.text import slugify
from django.utils.translation import gettext as _

from portal.accounts import sessions
from portal.accounts.models import User
from portal.accounts.selectors import may_enter
from portal.audit.services import record
from portal.common.errors import Forbidden, Invalid, NotFound
from portal.teams import services as teams
from portal.teams.models import Role, Team, TimeOutRule
from portal.teams.selectors import Rights

MOST_NAME, MOST_SLUG, MOST_COST_CENTRE = 80, 50, 40
MOST_GPU_SECONDS = 10**12
LEAST_TIME_OUT_S, MOST_TIME_OUT_S = 60, 90 * 86_400


@dataclass(frozen=True, slots=True)
class Invitation:
    """Somebody who can choose a password with ``path``, once and until ``expires_at``."""

    user: User
    path: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """Who approves what in a team, by the names and in the units of ``Team``."""

    approval_above_gpu_seconds: int | None
    second_approval_above_gpu_seconds: int | None = None
    approval_time_out_s: int | None = None
    approval_time_out_then: str = TimeOutRule.REMIND

    @classmethod
    def of(cls, team: Team) -> ApprovalRules:
        """Return the rules that a team has."""
        return cls(**{name: getattr(team, name) for name in cls.__slots__})


def may_add_team(rights: Rights, parent: Team) -> bool:
    """Say whether this person may make a team below ``parent``: its admin, or an operator."""
    return rights.has(parent, Role.ADMIN, Role.OPERATOR)


def may_change_team(rights: Rights, team: Team) -> bool:
    """Say whether this person decides on a team's name, cost centre and approval threshold.

    That is an operator or an admin of a team above, as with quotas: nobody lifts their own threshold. The organisation
    has nothing above it, so its own admin decides.
    """
    above = team.lineage[:-1] or team.lineage
    is_above = any(role == Role.ADMIN and team_id in above for team_id, role in rights.held)
    return is_above or rights.has(team, Role.OPERATOR)


@transaction.atomic
def add_team(*, parent: Team, name: str, slug: str, cost_centre: str, rights: Rights, now: datetime) -> Team:
    """Make a team below ``parent`` and write it down; without ``slug`` one is made from the name.

    Raises NotFound, Forbidden, and Invalid naming the field.
    """
    rights.require(parent, Role.ADMIN, Role.OPERATOR)
    name, cost_centre = name.strip(), cost_centre.strip()
    slug = slug.strip() or slugify(name)[:MOST_SLUG]
    fields = _name_faults(name, cost_centre)
    if not slug or slug != slugify(slug) or len(slug) > MOST_SLUG or "_" in slug:
        fields["slug"] = _("Give a short name of small letters, digits and dashes, such as “vision-lab”.")
    elif Team.objects.filter(slug=slug).exists():
        fields["slug"] = _("Another team has this short name. Choose a different one.")
    if parent.children.filter(name=name).exists():
        fields["name"] = _("A team of this name is there already.")
    if fields:
        raise Invalid(fields=fields)
    try:
        with transaction.atomic():
            team = teams.create_team(name=name, slug=slug, parent=parent, now=now, cost_centre=cost_centre)
    except IntegrityError as error:  # somebody was faster with this name
        raise Invalid(fields={"name": _("A team of this name is there already.")}) from error
    record(rights.user, "team.made", team.slug, at=now, team_id=team.pk, name=name, parent=parent.slug)
    return team


@transaction.atomic
def change_team(
    *,
    team: Team,
    name: str,
    cost_centre: str,
    rules: ApprovalRules,
    rights: Rights,
    now: datetime,
) -> Team:
    """Set a team's name, cost centre and the rules of its approvals.

    Requests that were sent already keep waiting for their approval, or need none; whether they need a second one, and
    what becomes of them when nobody decides, goes by the new rules. Raises NotFound, Forbidden, and Invalid naming the
    field.
    """
    rights.require(team, *Role.values)
    if not may_change_team(rights, team):
        raise Forbidden(_("An admin of a team above decides on this."))
    locked = Team.objects.select_for_update().get(pk=team.pk)
    name, cost_centre = name.strip(), cost_centre.strip()
    fields = _name_faults(name, cost_centre)
    if Team.objects.filter(parent=locked.parent_id, name=name).exclude(pk=locked.pk).exists():
        fields["name"] = _("A team of this name is there already.")
    fields |= _rule_faults(rules)
    if fields:
        raise Invalid(fields=fields)
    changed = {"name": name, "cost_centre": cost_centre, **asdict(rules)}
    for field, value in changed.items():
        setattr(locked, field, value)
    try:
        with transaction.atomic():
            locked.save(update_fields=list(changed))
    except IntegrityError as error:  # somebody was faster with this name
        raise Invalid(fields={"name": _("A team of this name is there already.")}) from error
    record(rights.user, "team.changed", team.slug, at=now, team_id=team.pk, **changed)
    return locked


@transaction.atomic
def add_person(
    *, team: Team, username: str, display_name: str, role: str, rights: Rights, now: datetime
) -> Invitation:
    """Make an account with a role in the team; the person chooses the password with the invitation.

    Raises NotFound, Forbidden, and Invalid naming the field, also for a name that somebody has.
    """
    rights.require(team, *teams.GIVES)
    user = make_user(username, display_name)
    teams.give_role(team=team, user=user, role=role, rights=rights, now=now)
    record(
        rights.user, "person.added", user.username, at=now, team_id=team.pk, team=team.slug, role=role,
    )  # fmt: skip
    return _invitation(user, now)


@transaction.atomic
def invite_again(*, username: str, rights: Rights, now: datetime) -> Invitation:
    """Return a new invitation for somebody who lost the first one or the password. Operators only.

    The old password works until the new one is chosen. Raises NotFound and Forbidden.
    """
    if not rights.is_operator:
        raise Forbidden(_("Only operators make a new link for somebody."))
    user = User.objects.filter(username=username).first()
    if user is None or user.is_demo or not may_enter(user):
        raise NotFound
    record(rights.user, "person.invited", user.username, at=now)
    return _invitation(user, now)


def invited(key: str, token: str) -> User | None:
    """Return who was invited by a link, None when it was used, has ended or was never made."""
    try:
        pk = int(urlsafe_base64_decode(key))
    except (ValueError, OverflowError):
        return None
    user = User.objects.filter(pk=pk).first() if 0 < pk < 2**63 else None
    if user is None or user.is_demo or not may_enter(user):
        return None
    return user if default_token_generator.check_token(user, token) else None


@transaction.atomic
def accept_invitation(key: str, token: str, *, password: str, now: datetime) -> User:
    """Set the password of who was invited, end their sessions and write it down; the link is used up by that.

    Raises NotFound for a link that does not work (any more), and Invalid for a password that will not do.
    """
    found = invited(key, token)
    # Locked, then looked at again: of two who use one link at once, the second finds it used.
    user = None if found is None else User.objects.select_for_update().get(pk=found.pk)
    if user is None or not default_token_generator.check_token(user, token):
        raise NotFound
    set_new_password(user, password)
    user.save(update_fields=["password"])
    sessions.end_sessions(user, now=now)
    record(user, "person.joined", user.username, at=now)
    return user


def make_user(username: str, display_name: str) -> User:
    """Make an account without a password. Call inside a transaction; raises Invalid naming the field."""
    user = User(username=User.normalize_username(username.strip()), display_name=display_name.strip())
    user.set_unusable_password()
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        raise Invalid(fields={name: " ".join(found) for name, found in error.message_dict.items()}) from error
    taken = Invalid(fields={"username": _("Somebody signs in under this name already.")})
    # Names that differ in capitals alone would be taken for one another.
    if User.objects.filter(username__iexact=user.username).exists():
        raise taken
    try:
        with transaction.atomic():
            user.save()
    except IntegrityError as error:
        raise taken from error
    return user


def set_new_password(user: User, password: str) -> None:
    """Put a password on an account in memory; raises Invalid for one that is too short or too common."""
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Invalid(fields={"password": " ".join(error.messages)}) from error
    user.set_password(password)


def _invitation(user: User, now: datetime) -> Invitation:
    key, token = urlsafe_base64_encode(force_bytes(user.pk)), default_token_generator.make_token(user)
    return Invitation(user, f"/join/{key}/{token}/", now + timedelta(seconds=settings.PASSWORD_RESET_TIMEOUT))


def _rule_faults(rules: ApprovalRules) -> dict[str, str]:
    """Return what is wrong with rules of approvals, by field."""
    fields = {}
    first, second = rules.approval_above_gpu_seconds, rules.second_approval_above_gpu_seconds
    for name, above in (("approval_above_gpu_seconds", first), ("second_approval_above_gpu_seconds", second)):
        if above is not None and not 0 <= above <= MOST_GPU_SECONDS:
            fields[name] = _("This is not a number of GPU-hours that Berth can keep.")
    if second is not None and (first is None or second < first) and not fields:
        fields["second_approval_above_gpu_seconds"] = _(
            "A second approval begins no lower than the first: raise it, or leave it empty."
        )
    if (
        rules.approval_time_out_s is not None
        and not LEAST_TIME_OUT_S <= rules.approval_time_out_s <= MOST_TIME_OUT_S
    ):
        fields["approval_time_out_s"] = _("Wait for 1 minute to 90 days, or leave it empty to wait for ever.")
    if rules.approval_time_out_then not in TimeOutRule.values:
        fields["approval_time_out_then"] = _("Choose remind, reject or approve.")
    return fields


def _name_faults(name: str, cost_centre: str) -> dict[str, str]:
    fields = {}
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        fields["name"] = _("Give the team a name of 1 to 80 characters.")
    if len(cost_centre) > MOST_COST_CENTRE or not cost_centre.isprintable():
        fields["cost_centre"] = _("A cost centre has at most 40 characters.")
    return fields
