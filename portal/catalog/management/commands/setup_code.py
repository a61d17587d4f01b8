from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from portal.catalog.first_start import is_set_up, setup_code


class Command(BaseCommand):
    """Print the code that the page /setup/ of an empty installation asks for."""

    help = "Print the setup code of an empty installation; nothing but a note where it is set up already."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the code, or say that it is not needed any more."""
        if is_set_up():
            self.stdout.write("Berth is set up: no code is needed any more.")
        else:
            self.stdout.write(f"Setup code: {setup_code()}   (open /setup/ and make the organisation)")
