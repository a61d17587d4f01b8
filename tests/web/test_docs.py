from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db


@pytest.fixture
def site(tmp_path: Path, settings: Any) -> Path:
    settings.DOCS_DIR = tmp_path / "site"
    (settings.DOCS_DIR / "cli").mkdir(parents=True)
    (settings.DOCS_DIR / "index.html").write_text("<h1>Berth</h1>")
    (settings.DOCS_DIR / "cli" / "index.html").write_text("<h1>Command line</h1>")
    (settings.DOCS_DIR / "look.css").write_text("h1 {}")
    (tmp_path / "secret.txt").write_text("not for you")
    return Path(settings.DOCS_DIR)


def test_the_built_site_is_served_to_everybody(site: Path) -> None:
    nobody = Client()

    home = nobody.get("/docs/")

    assert b"".join(home.streaming_content) == b"<h1>Berth</h1>"
    assert home["Content-Type"].startswith("text/html")
    assert "'unsafe-inline'" in home["Content-Security-Policy"]
    assert nobody.get("/docs/cli")["Location"] == "/docs/cli/"
    assert nobody.get("/docs/cli/").status_code == 200
    assert nobody.get("/docs/look.css")["Content-Type"].startswith("text/css")
    assert nobody.get("/docs/errors")["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    "path", ["../secret.txt", "..%2fsecret.txt", "none/", "cli/../../secret.txt", "%2fetc/passwd"]
)
def test_nothing_outside_of_it_is_served(site: Path, path: str) -> None:
    assert Client().get(f"/docs/{path}").status_code == 404


def test_without_a_built_site_the_page_says_how_to_build_it(tmp_path: Path, settings: Any) -> None:
    settings.DOCS_DIR = tmp_path / "site"

    answer = Client().get("/docs/")

    assert answer.status_code == 404
    assert "make docs" in answer.text
    assert "'unsafe-inline'" not in Client().get("/sign-in/")["Content-Security-Policy"]
