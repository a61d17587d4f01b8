"""Which images a team's jobs may run in, and whether any node could run them.

Images that lie in the site's own folder (``oci:``) are everybody's: whoever runs the nodes put them there. Any other
must stand on the list of the team or of one above it, which is empty at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction
from django.utils.translation import gettext as _

from nodeagent.protocol.images import LAYOUT, MOST_REFERENCE, ImageReference, image_of
from nodeagent.protocol.messages import CONTAINERS
from portal.audit.services import record
from portal.catalog.models import Flavor
from portal.common.errors import Forbidden, Invalid
from portal.fleet.models import Device
from portal.jobs.models import ImageList
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights

MOST_NAMES: Final = 100
ALL_BELOW: Final = "/*"
EDITORS: Final = (Role.ADMIN, Role.OPERATOR)


@dataclass(frozen=True, slots=True)
class AllowedImage:
    """A line of a list, and the team whose it is."""

    name: str
    team: Team


def allowed_images(team: Team) -> list[AllowedImage]:
    """Return what a team's jobs may run in beside the site's own images: its own list first, then those above."""
    teams = {one.pk: one for one in Team.objects.filter(pk__in=team.lineage)}
    lists = {one.team_id: one for one in ImageList.objects.filter(team__in=team.lineage)}
    found: dict[str, AllowedImage] = {}
    for pk in reversed(team.lineage):
        for name in lists[pk].names if pk in lists else ():
            found.setdefault(name, AllowedImage(name, teams[pk]))
    return list(found.values())


def may_edit_images(rights: Rights, team: Team) -> bool:
    """Say whether this person decides which images a team may use."""
    return rights.has(team, *EDITORS)


@transaction.atomic
def store_allowed_images(*, team: Team, rights: Rights, names: Sequence[str], now: datetime) -> list[str]:
    """Replace a team's own list; raises NotFound, Forbidden, or Invalid naming the first line that is none."""
    rights.require(team, *Role.values)
    if not may_edit_images(rights, team):
        raise Forbidden(_("Only an admin of the team or an operator decides on its images."))
    kept = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    wrong = next((name for name in kept if not is_pattern(name)), None)
    if wrong is not None:
        raise Invalid(
            fields={
                "images": _(
                    "“%(name)s” is no image. Write registry.example/team/pytorch, with :2.9 or @sha256:… behind"
                    " for one version only, or registry.example/team/* for all below."
                )
                % {"name": wrong[:80]}
            }
        )
    if len(kept) > MOST_NAMES:
        raise Invalid(fields={"images": _("A team has at most %(n)d images.") % {"n": MOST_NAMES}})
    ImageList.objects.update_or_create(team=team, defaults={"names": kept, "changed_at": now})
    record(rights.user, "team.images_changed", team.slug, at=now, team_id=team.pk, images=kept)
    return kept


def is_pattern(text: str) -> bool:
    """Say whether a text can stand on a list: an image, or all images below a name."""
    below = text.endswith(ALL_BELOW)
    image = image_of(f"{text.removesuffix(ALL_BELOW)}/x" if below else text)
    return image is not None and len(text) <= MOST_REFERENCE and not (below and (image.tag or image.digest))


def matches(pattern: str, image: ImageReference) -> bool:
    """Say whether a line of a list allows an image; a line with a tag or a digest allows that one alone.

    A tag beside a digest is only a word: what runs is the digest. So a line with no more than a tag allows no digest.
    """
    if pattern.endswith(ALL_BELOW):
        return image.name.startswith(pattern[:-1])
    allowed = image_of(pattern)
    return (
        allowed is not None
        and allowed.name == image.name
        and allowed.tag in ("", image.tag or "latest")
        and image.digest in ((allowed.digest,) if allowed.tag or allowed.digest else ("", image.digest))
    )


def check_image(*, team: Team, flavor: Flavor, text: str) -> None:
    """Raise Invalid where a job may not run in this image, or no node with its flavor runs containers."""
    image = image_of(text)
    assert image is not None, "spec.read_spec lets nothing else through"
    if not image.name.startswith(LAYOUT) and not any(
        matches(one.name, image) for one in allowed_images(team)
    ):
        raise Invalid(
            fields={
                "image": _("%(image)s is not on the list of %(team)s. A team admin can add it under Images.")
                % {"image": text[:120], "team": team.name}
            }
        )
    able = Device.objects.filter(model=flavor.device_model_id, modes__contains=[flavor.mode])
    if not able.filter(node__features__contains=[CONTAINERS]).exists():
        raise Invalid(
            fields={
                "image": _(
                    "No node with %(flavor)s runs containers. Leave the image out: the job then uses the node's own"
                    " programs. Or ask an operator to install Podman there."
                )
                % {"flavor": flavor.shown_name}
            }
        )
