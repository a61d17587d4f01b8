from __future__ import annotations

import re
from pathlib import Path

import typer

from portal.cli.main import app

DOCS = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_documented_commands_and_options_are_those_of_the_program() -> None:
    sections = re.split(r"^### `berth ([a-z-]+)`$", DOCS.read_text(), flags=re.MULTILINE)[1:]
    documented = {
        name: set(re.findall(r"(--[a-z]+)", text))
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]

    assert set(documented) == set(commands)
    for name, command in commands.items():
        options = {o for p in command.params for o in p.opts if o.startswith("--") and o != "--help"}
        assert options <= documented[name], name
        assert command.help in DOCS.read_text(), name


def test_every_command_of_a_group_is_documented_with_its_options() -> None:
    text = DOCS.read_text()
    sections = re.split(r"^### `berth ([a-z-]+)`$", text, flags=re.MULTILINE)[1:]
    documented = dict(zip(sections[::2], sections[1::2], strict=True))

    for name, group in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for inner, command in getattr(group, "commands", {}).items():
            assert f"`berth {name} {inner}" in documented[name]
            options = {o for p in command.params for o in p.opts if o.startswith("--") and o != "--help"}
            assert options <= set(re.findall(r"`(--[a-z-]+)", documented[name])), (name, inner)
