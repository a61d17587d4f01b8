"""What finance files money under beyond the team: a cost centre, a project, and tags with free names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.translation import gettext as _

from portal.common.errors import Invalid

MOST_TAGS, MOST_TAG_NAME, MOST_TAG_VALUE = 10, 40, 80
TAG_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,39}")
CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
# What exports say of a charge under these names already.
RESERVED = frozenset({"cost_centre", "project", "person", "device_model"})


@dataclass(frozen=True, slots=True)
class Labels:
    """What a piece of usage is filed under: "" is the cost centre of its team, or no project. Tags are sorted."""

    cost_centre: str = ""
    project: str = ""
    tags: tuple[tuple[str, str], ...] = ()

    def tag(self, name: str) -> str:
        """Return the value of a tag, "" where it has none."""
        return dict(self.tags).get(name, "")


def check_tags(tags: Mapping[str, object]) -> dict[str, str]:
    """Return tags with their values trimmed, those without a value left out; raises Invalid naming ``tags``."""
    found: dict[str, str] = {}
    for name, value in tags.items():
        if not isinstance(name, str) or not TAG_NAME.fullmatch(name):
            raise Invalid(fields={"tags": _tag_name_fault(str(name))})
        if name in RESERVED:
            raise Invalid(fields={"tags": _("Berth uses the name “%(name)s” itself.") % {"name": name}})
        text = value.strip() if isinstance(value, str) else None
        if text is None or len(text) > MOST_TAG_VALUE or "," in text or not text.isprintable():
            raise Invalid(
                fields={
                    "tags": _(
                        "The value of “%(name)s” has to be a text of at most %(n)d characters without a comma."
                    )
                    % {"name": name, "n": MOST_TAG_VALUE}
                }
            )
        if text:
            found[name] = text
    if len(found) > MOST_TAGS:
        raise Invalid(fields={"tags": _("At most %(n)d tags.") % {"n": MOST_TAGS}})
    return dict(sorted(found.items()))


def tags_of(text: str) -> dict[str, str]:
    """Return the tags that a text such as "paper=iclr, grant=EU-4711" names; raises Invalid naming ``tags``."""
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in re.split(r"[,\n]", text))):
        name, equals, value = part.partition("=")
        if not equals:
            raise Invalid(
                fields={"tags": _("Write “%(part)s” as name=value.") % {"part": part[:MOST_TAG_NAME]}}
            )
        found[name.strip()] = value.strip()
    return check_tags(found)


def tags_text(tags: Mapping[str, str]) -> str:
    """Return tags as ``tags_of`` reads them."""
    return ", ".join(f"{name}={value}" for name, value in sorted(tags.items()))


def _tag_name_fault(name: str) -> str:
    return _(
        "“%(name)s” cannot be the name of a tag: small letters, digits, “_”, “.” and “-”, at most 40, a letter first."
    ) % {"name": name[:MOST_TAG_NAME]}
