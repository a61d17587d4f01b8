"""Puts the documentation into the wheel of the portal, where `make docs` has built it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuiltDocs(BuildHookInterface):  # type: ignore[type-arg]
    """Adds site/ to what is shipped; without it, /docs/ says how to build it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects the files; an editable wheel ("editable") finds site/ by itself."""
        site = Path(self.root) / "site"
        if version == "standard" and (site / "index.html").is_file():
            build_data["force_include"][str(site)] = "portal/shipped/site"
