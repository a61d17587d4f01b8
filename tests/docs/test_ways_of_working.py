"""The snippets of the pages about working in a lease: each is one that the program takes, and means what is said."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from typer.exceptions import TyperException

from portal.cli.main import app
from portal.gateway.catalogue import app_of
from portal.jobs.spec import read_spec

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("terminal", "apps", "ssh", "batch", "containers", "access")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(berth [a-z][^`…]*)`")


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall((DOCS / f"{page}.md").read_text()) if kind == language]


def command_lines(page: str) -> list[str]:
    lines = [line for text in blocks(page, "sh") for line in text.splitlines()]
    return [line for line in lines if line.startswith("berth ")]


def parse(words: list[str]) -> None:
    """Parse a command line as the program does, and run nothing; raises what it would say."""
    command, context = typer.main.get_command(app), None
    while hasattr(command, "commands"):
        context = command.make_context(words[0], list(words[1:]), parent=context)
        words = [*context._protected_args, *context.args]
        _, command, _ = command.resolve_command(context, words)
    command.make_context(words[0], list(words[1:]), parent=context)


@pytest.mark.parametrize("page", PAGES)
def test_each_command_line_is_one_that_the_program_takes(page: str) -> None:
    lines, named = command_lines(page), INLINE.findall((DOCS / f"{page}.md").read_text())
    refused = {}
    for line in (*lines, *named):
        try:
            parse(shlex.split(line, comments=True))
        except TyperException as no:
            # In a sentence a command may be named without what it is about.
            if line in lines or not str(no).startswith("Missing parameter"):
                refused[line] = str(no)

    assert lines or named
    assert refused == {}


def test_line_that_the_program_does_not_take_is_found() -> None:
    for line in ("berth nothing", "berth job shw X", "berth run --gpus 20GB -- x", "berth submit"):
        with pytest.raises(TyperException):
            parse(shlex.split(line))


def test_example_of_a_job_is_one() -> None:
    (text,) = blocks("batch", "yaml")

    spec = read_spec(yaml.safe_load(text))

    assert (spec.name, spec.time_s, spec.at_once, len(spec.array)) == ("finetune", 6 * 3600, 4, 20)


def test_catalogue_of_apps_is_one(settings: object, tmp_path: Path) -> None:
    (text,) = blocks("apps", "json")
    (tmp_path / "apps.json").write_text(text)
    settings.APPS_CATALOGUE = str(tmp_path / "apps.json")  # type: ignore[attr-defined]

    found = app_of("jupyterlab")

    assert found is not None
    assert (found.socket, found.ready_path, found.token_variable) == (
        "jupyterlab.sock",
        "/api",
        "JUPYTER_TOKEN",
    )
