"""From an empty installation to a price with ``berth`` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.wsgi import get_wsgi_application
from django.utils import timezone
from typer.testing import CliRunner

from portal.catalog.first_start import setup_code
from portal.catalog.models import Flavor, Rate
from portal.cli import client
from portal.cli.main import app
from portal.teams.models import Team
from tests.portal.builders import make_node

PASSWORD = "a quiet harbour at night"


@pytest.mark.django_db
def test_every_step_of_the_first_start_has_a_command(
    one_connection: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "transport", httpx.WSGITransport(get_wsgi_application()))

    def berth(*words: str, typed: str = "") -> Any:
        done = CliRunner().invoke(app, list(words), input=typed)
        assert done.exit_code == 0, (words, done.stderr)
        return done

    start = (
        "setup",
        "start",
        "Harbour",
        "--user",
        "alice",
        "--currency",
        "CNY",
        "--url",
        "http://testserver",
    )
    refused = CliRunner().invoke(app, [*start, "--code", "AAAA"], input=f"{PASSWORD}\n{PASSWORD}\n")
    assert refused.exit_code == 1
    assert berth(*start, "--code", setup_code(), typed=f"{PASSWORD}\n{PASSWORD}\n").stdout.split() == [
        "harbour"
    ]

    assert "berth flavor offer" in berth("setup", "status").stdout
    assert berth("team", "create", "Vision Lab", "--parent", "harbour").stdout == "vision-lab\n"
    assert "approval above 100 GPU-hours" in berth("team", "set", "vision-lab", "--approval", "100").stderr
    assert "/join/" in berth("person", "add", "bob", "--team", "vision-lab").stdout
    assert "/join/" in berth("person", "link", "bob").stdout
    berth("person", "give", "bob", "--team", "vision-lab", "--role", "approver")
    assert "approver" in berth("person", "list", "--team", "vision-lab").stdout
    berth("person", "take", "bob", "--team", "vision-lab", "--role", "approver")
    make_node("gpu-01", "l40s-48gb", 1, ("exclusive", "timeslice"), now=timezone.now())
    assert "l40s-48gb" in berth("flavor", "offer", "l40s-48gb").stdout
    berth("flavor", "create", "l40s-slice", "--model", "l40s-48gb", "--mode", "timeslice", "--name", "L40S slice",
          "--memory", "12", "--share", "25")  # fmt: skip
    assert "is switched off" in berth("flavor", "set", "l40s-slice", "--off").stderr
    assert berth("price", "currency", "USD").stdout == "USD\n"
    berth("price", "set", "l40s-48gb", "1.20")
    assert "1.20" in berth("price", "list").stdout
    assert "People can ask for GPU time." in berth("setup", "status").stderr

    assert Rate.objects.get().micro_per_hour == 1_200_000
    assert Flavor.objects.get(slug="l40s-slice").memory_mib == 12 * 1024
    assert Team.objects.get(slug="vision-lab").approval_above_gpu_seconds == 360_000
