"""Invitations by mail: the link goes to one mailbox, and whoever invites still sees it, should the mail be lost."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.utils.translation import gettext as _

from portal.common.errors import Invalid
from portal.common.moments import moment
from portal.notifications.contact_points import has_mail
from portal.notifications.outgoing import Undeliverable, mail
from portal.teams.models import Role, TeamInvitation


def check_mailbox(email: str) -> None:
    """Raise Invalid for what is no address, or where this installation sends no mail."""
    if not email:
        return
    try:
        validate_email(email)
    except ValidationError as error:
        raise Invalid(fields={"email": _("This is no mail address.")}) from error
    if not has_mail():
        raise Invalid(
            fields={
                "email": _("This installation sends no mail. Leave it empty and hand the link over yourself.")
            }
        )


def mail_invitation(row: TeamInvitation, link: str) -> str:
    """Send the link of an invitation to its mailbox and return why that failed, "" where it went out.

    Call after the transaction that made it: a mail server may take ``EMAIL_TIMEOUT`` seconds.
    """
    facts = {
        "who": row.invited_by,
        "team": row.team.name,
        "role": Role(row.role).label,
        "until": moment(row.expires_at),
        "link": link,
    }
    subject = _("Berth: %(who)s invites you to %(team)s") % facts
    text = _(
        "%(who)s invites you to %(team)s as %(role)s.\n\nOpen this link until %(until)s; it works once:\n%(link)s\n"
    )
    try:
        mail(row.email, subject[:150].replace("\n", " "), text % facts)
    except Undeliverable as error:
        return str(error)
    return ""
