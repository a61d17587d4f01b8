"""The first start of an empty installation: its organisation, its first administrator, and what is left to do."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Subquery
from django.utils.crypto import constant_time_compare, salted_hmac
from django.utils.text import slugify
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.organisation import MOST_NAME, MOST_SLUG, make_user, set_new_password
from portal.audit.services import record
from portal.catalog.models import Flavor, Rate
from portal.catalog.services import default_card, read_currency
from portal.common.errors import Conflict, Invalid
from portal.fleet.models import Node
from portal.teams.models import Membership, Role, Team
from portal.teams.services import add_member, create_team

# So that two who set up at once do not make two organisations.
FIRST_START_LOCK = 7_316_204


def setup_code() -> str:
    """Return the code that whoever sets up Berth has to know, like ``ABCD-EFGH-IJKL-MNOP``.

    It follows from the secret key, so every process knows it and it outlives a restart. `make up` and
    ``manage.py setup_code`` print it: who can read it runs this installation. It opens nothing once there is an
    organisation.
    """
    digest = salted_hmac("portal.catalog.first_start", "setup code", algorithm="sha256").digest()
    text = base64.b32encode(digest[:10]).decode()
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))


def is_set_up() -> bool:
    """Say whether there is an organisation."""
    return Team.objects.filter(parent=None).exists()


@transaction.atomic
def set_up(
    *,
    code: str | None,
    organisation: str,
    currency: str,
    username: str,
    display_name: str,
    password: str,
    now: datetime,
) -> User:
    """Make the organisation, its rate card and its first administrator, who holds every role.

    ``code`` None is a command on the machine itself, which needs none. Raises Conflict when there is an organisation
    already, and Invalid naming the field.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [FIRST_START_LOCK])
    if is_set_up():
        raise Conflict(_("Berth is set up already. Sign in instead."))
    if code is not None and not constant_time_compare(_plain(code), _plain(setup_code())):
        raise Invalid(fields={"code": _("That is not the setup code. “manage.py setup_code” prints it.")})
    name = organisation.strip()
    fields: dict[str, str] = {}
    if not 1 <= len(name) <= MOST_NAME or not name.isprintable():
        fields["organisation"] = _("Give the organisation a name of 1 to 80 characters.")
    try:
        unit = read_currency(currency)
    except Invalid as error:
        fields |= error.fields
    if fields:
        raise Invalid(fields=fields)
    person = make_user(username, display_name)
    set_new_password(person, password)
    person.save(update_fields=["password"])
    # A name without Latin letters gives no short name.
    slug = slugify(name)[:MOST_SLUG].strip("-") or "organisation"
    team = create_team(name=name, slug=slug, parent=None, now=now)
    for role in Role.values:
        add_member(team=team, user=person, role=role, now=now)
    card = default_card()
    card.currency = unit
    card.save(update_fields=["currency"])
    record(person, "organisation.made", team.slug, at=now, team_id=team.pk, name=name, currency=unit)
    return person


def _plain(code: str) -> str:
    """Return a code as it is compared: capitals, dashes and blanks do not matter."""
    return "".join(code.split()).replace("-", "").upper()[:100]


@dataclass(frozen=True, slots=True)
class SetupProgress:
    """What an installation has of what it needs before somebody can ask for GPU time.

    ``has_prices`` says that every device model that is offered has had a price set; nothing offered is no.
    """

    has_organisation: bool
    has_teams: bool
    has_people: bool
    has_threshold: bool
    has_nodes: bool
    has_flavors: bool
    has_prices: bool

    @property
    def is_ready(self) -> bool:
        """Whether somebody can ask; teams below and thresholds are a matter of taste."""
        return all((self.has_organisation, self.has_nodes, self.has_flavors, self.has_prices))


def progress() -> SetupProgress:
    """Return how far an installation has come, in one query."""
    offered = Flavor.objects.filter(is_active=True)
    unpriced = offered.exclude(
        Exists(Rate.objects.filter(card__is_default=True, device_model=OuterRef("device_model")))
    )
    roots = Team.objects.filter(parent=None).annotate(
        first=Subquery(Membership.objects.order_by("pk").values("user")[:1]),
        teams=Exists(Team.objects.exclude(parent=None)),
        people=Exists(Membership.objects.exclude(user=OuterRef("first"))),
        threshold=Exists(Team.objects.filter(approval_above_gpu_seconds__isnull=False)),
        nodes=Exists(Node.objects.filter(enrolled_at__isnull=False)),
        flavors=Exists(offered),
        unpriced=Exists(unpriced),
    )
    row = roots.order_by("pk").first()
    if row is None:
        return SetupProgress(*[False] * 7)
    return SetupProgress(
        has_organisation=True,
        has_teams=row.teams,
        has_people=row.people,
        has_threshold=row.threshold,
        has_nodes=row.nodes,
        has_flavors=row.flavors,
        has_prices=row.flavors and not row.unpriced,
    )
