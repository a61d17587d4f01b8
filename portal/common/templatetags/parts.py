"""``{% include %}`` for parts that pages show again and again: drawn once for what they are given.

A list of 25 leases includes some 250 icons, states, times and prices; drawing each anew took half of a page's time. A
part named in ``PARTS`` says nothing but what its arguments say, in the language and the zone in use, so what was drawn
is kept by these. Such a part never sees the variables around it: every include of one acts as if it said ``only``.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from django import template
from django.template.base import Parser, Token
from django.template.context import Context
from django.template.loader import get_template
from django.template.loader_tags import IncludeNode, do_include
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language

register = template.Library()
PARTS: Final = frozenset(
    f"includes/{name}.html"
    for name in (
        "icon", "link_state", "mark", "money", "patterns", "start", "state", "state_pill", "time", "unknown",
    )
)  # fmt: skip
KEPT: Final = 8192
# What never changes. Anything else, a row of a table above all, may be another tomorrow and still count as equal.
_PLAIN: Final = (str, int, float, Decimal, datetime, type(None))


class PartNode(IncludeNode):
    """A part that is drawn from its arguments alone."""

    def render(self, context: Context) -> SafeString:
        """Return the part as it was drawn before, or draw it."""
        name = self.template.var
        given = {argument: _plain(value.resolve(context)) for argument, value in self.extra_context.items()}
        if not all(isinstance(value, _PLAIN) for value in given.values()):
            return _draw(name, given)
        # Marked text and plain, True and 1, 1.0 and 1.00 count as equal, and are drawn differently.
        kinds = tuple(str(value) if isinstance(value, Decimal) else type(value) for value in given.values())
        zone = timezone.get_current_timezone()
        # Times name their year only where it is not this one.
        where = (get_language(), str(zone), timezone.now().astimezone(zone).year)
        return _drawn(name, where, tuple(given.items()), kinds)


@register.tag("include")
def include(parser: Parser, token: Token) -> IncludeNode:
    """Read an include as Django does; one of ``PARTS`` is drawn once for what it is given."""
    node = do_include(parser, token)
    if getattr(node.template, "var", None) not in PARTS:
        return node
    return PartNode(node.template, extra_context=node.extra_context, isolated_context=True)


@lru_cache(maxsize=KEPT)
def _drawn(name: str, _where: object, given: tuple[tuple[str, Any], ...], _kinds: object) -> SafeString:
    return _draw(name, dict(given))


def _draw(name: str, given: dict[str, Any]) -> SafeString:
    return mark_safe(get_template(name).render(given))  # noqa: S308 (a template has escaped it)


def _plain(value: Any) -> Any:
    """Return a word that is translated late as it reads now."""
    return str(value) if isinstance(value, Promise) else value
