from __future__ import annotations

from portal.notifications.models import ContactPoint, Delivery
from tests.cli.conftest import Berth
from tests.portal.builders import World


def test_a_contact_point_from_the_command_line(berth: Berth, world: World) -> None:
    added = berth("contact", "add", "webhook", "https://example.org/hook", "--name", "ours")
    row = ContactPoint.objects.get()
    key = str(row.pk)

    assert added.stdout.startswith("whsec_")
    assert "example.org/…hook" in berth("contact", "list").stdout
    changed = berth("contact", "change", key, "--mute", "jobs,fleet", "--quiet", "22:00-07:00", "--off")
    assert "ours is off" in changed.stderr
    row.refresh_from_db()
    assert (row.muted, row.quiet_from, row.quiet_until, row.is_on) == (["fleet", "jobs"], 1320, 420, False)
    assert berth("contact", "change", key, "--quiet", "25:00-07:00").exit_code == 1
    assert berth("contact", "test", key).exit_code == 0
    assert Delivery.objects.get().purpose == "test"
    assert "waiting" in berth("contact", "deliveries", key).stdout
    assert berth("contact", "remove", key).exit_code == 0
    assert not ContactPoint.objects.exists()
