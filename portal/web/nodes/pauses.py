"""Pauses of intake on the pages of nodes, in words."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils.translation import gettext as _

from portal.common.moments import moment
from portal.fleet.models import IntakePause
from portal.fleet.pauses import ANYWHERE, scope_name


def pause_rows(pauses: Iterable[IntakePause], *, is_operator: bool) -> list[str]:
    """Return each pause as a sentence; the rule behind it is for operators."""
    return [_sentence(row, is_operator=is_operator) for row in pauses]


def _sentence(row: IntakePause, *, is_operator: bool) -> str:
    name = scope_name(row)
    what = _("every node") if name == ANYWHERE else name
    said = _("%(what)s: until %(at)s, and for longer if the alert lasts.") % {
        "what": what,
        "at": moment(row.until),
    }
    return _("%(said)s Rule: %(rule)s.") % {"said": said, "rule": row.reason} if is_operator else said
