"""The site that `make docs` builds: every page is in its menu, every link leads somewhere, names are in the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
# `folder/file.py` or `folder/file.py::Class.function`
PLACE = re.compile(r"^((?:portal|scheduler|nodeagent)/[\w/]+\.py)(?:::([\w.]+))?$")


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [leaf for part in parts for leaf in leaves(part)]


def names_in(path: str) -> set[str]:
    """Return the functions and classes of a file, methods as ``Class.method``."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{one.name}" for one in inner}
    return found


def test_no_page_is_an_orphan() -> None:
    menu = leaves(SITE["nav"])

    assert set(menu) == PAGES
    assert len(menu) == len(set(menu)), "a page stands in the menu once"


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_leads_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)

    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http://", "https://")):
            assert (DOCS / page).parent.joinpath(target).exists(), target


def test_every_name_on_the_architecture_page_is_in_the_code() -> None:
    places = [PLACE.match(text) for text in re.findall(r"`([^`]+)`", (DOCS / "architecture.md").read_text())]
    known = [place for place in places if place]

    assert len(known) > 15
    for place in known:
        path, name = place.groups()
        assert (ROOT / path).is_file(), path
        assert name is None or name in names_in(path), place[0]


@pytest.mark.parametrize("drawing", sorted(path.name for path in (DOCS / "drawings").glob("*.svg")))
def test_every_name_in_a_drawing_is_in_the_code(drawing: str) -> None:
    code = re.findall(r'<text class="code"[^>]*>([^<]+)</text>', (DOCS / "drawings" / drawing).read_text())
    path = ""

    assert code
    for text in code:
        if text.endswith(".py"):
            path = text
            assert (ROOT / path).is_file(), path
        else:
            assert text in names_in(path), f"{path}::{text}"


def test_the_drawing_of_a_request_and_its_table_name_the_same_functions() -> None:
    text = (DOCS / "drawings" / "request.svg").read_text()
    drawn = re.findall(r'<text class="code"[^>]*>([^<]+)</text>', text)
    table = (DOCS / "architecture.md").read_text()

    for path, name in zip(drawn[::2], drawn[1::2], strict=True):
        assert f"`{path}::{name}`" in table
