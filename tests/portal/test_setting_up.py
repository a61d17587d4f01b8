from __future__ import annotations

from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command

from portal.accounts.models import User
from portal.catalog.models import Flavor
from portal.catalog.standard import make_standard_flavors
from portal.fleet.models import DeviceModel
from portal.policies.first_policy import FIRST_RULES
from portal.policies.management.commands import create_organisation
from portal.policies.selectors import active_policy, in_force
from portal.teams.models import Membership, Role, Team
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def test_standard_flavors_are_what_devices_offer_and_each_can_be_asked_for(world: World) -> None:
    Flavor.objects.all().delete()

    made = make_standard_flavors(DeviceModel.objects.get(slug="h100-80gb"))

    assert {f.slug for f in made} == {"h100-80gb", *(f"h100-80gb-{p}" for p in (
        "1g-10gb", "1g-20gb", "2g-20gb", "3g-40gb", "4g-40gb", "7g-80gb"))}  # fmt: skip
    assert all(1 <= f.share_milli <= 1000 for f in made)
    world.submit("bob", "h100-80gb-3g-40gb")
    assert len(world.turn()) == 1


def test_making_them_again_adds_nothing(world: World) -> None:
    make_standard_flavors(DeviceModel.objects.get(slug="l40s-48gb"))

    assert make_standard_flavors(DeviceModel.objects.get(slug="l40s-48gb")) == []


def test_the_first_person_of_an_empty_installation_holds_every_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_organisation, "getpass", lambda _ask: "a long enough one")

    call_command("create_organisation", "Harbour Institute", "--person", "alice")

    assert Team.objects.get().slug == "harbour-institute"
    assert set(Membership.objects.values_list("role", flat=True)) == set(Role.values)
    policy = active_policy()
    assert (policy.order, policy.preempting.by_score, policy.preempting.interactive) == (
        "default",
        True,
        False,
    )
    assert replace(policy, name=FIRST_RULES.name, version=FIRST_RULES.version) == FIRST_RULES
    row = in_force().row
    assert row
    assert row.made_by == User.objects.get()
    with pytest.raises(CommandError, match="already"):
        call_command("create_organisation", "Another", "--person", "bob")
