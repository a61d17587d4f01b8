from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from portal.agents.services import create_enrol_token


class Command(BaseCommand):
    """Make a one-time token for a node's agent, printed or written to a file only its owner can read."""

    help = "Prepare a node's enrolment: prints the one-time token, or writes it to --token-file."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the node's name and where to put the token."""
        parser.add_argument("name")
        parser.add_argument("--token-file", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        """Write the token."""
        new = create_enrol_token(node_name=options["name"], actor=None, now=timezone.now())
        path: Path | None = options["token_file"]
        if path is None:
            self.stdout.write(new.secret)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(new.secret)
        self.stdout.write(f"token for {new.node.name} written to {path}")
