"""The browser libraries are those of the manifest, byte for byte, and the sprite has every icon we draw."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tools import vendor

ROOT = Path(vendor.__file__).resolve().parent.parent
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
PAGES = sorted((ROOT / "portal" / "web").rglob("*.py"))


def test_vendored_files_are_those_of_the_manifest():
    assert vendor.differences() == []


def test_a_changed_a_missing_and_a_strange_file_are_each_named(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "static" / "vendor", tmp_path / "static" / "vendor")
    shutil.copy(ROOT / "static" / "icons.svg", tmp_path / "static" / "icons.svg")
    for name, path in (("ROOT", tmp_path), ("VENDOR", tmp_path / "static" / "vendor")):
        monkeypatch.setattr(vendor, name, path)
    monkeypatch.setattr(vendor, "MANIFEST", tmp_path / "static" / "vendor" / "manifest.json")
    (vendor.VENDOR / "htmx" / "htmx.min.js").write_text("other", encoding="utf-8")
    (vendor.VENDOR / "uplot" / "uPlot.min.css").unlink()
    (vendor.VENDOR / "extra.js").write_text("", encoding="utf-8")

    found = vendor.differences()

    assert found == [
        "not in the manifest: vendor/extra.js",
        "missing: vendor/uplot/uPlot.min.css",
        "changed: vendor/htmx/htmx.min.js",
    ]


def test_every_library_brings_its_licence():
    for line in json.loads(vendor.MANIFEST.read_text(encoding="utf-8")):
        assert any(name.endswith("/LICENSE") for name in line["files"]), line["package"]


def test_every_icon_that_a_page_names_is_in_the_sprite():
    drawn = set(re.findall(r'id="([a-z0-9-]+)"', vendor.SPRITE.read_text(encoding="utf-8")))
    markup = "\n".join(path.read_text("utf-8") for path in TEMPLATES)
    code = "\n".join(path.read_text("utf-8") for path in PAGES)
    named = set(re.findall(r'icon\.html" with name="([a-z0-9-]+)"', markup))
    named |= set(re.findall(r'icon="([a-z0-9-]+)"', markup)) | set(
        re.findall(r'icon"?[=:] ?"([a-z0-9-]+)"', code)
    )

    assert len(named) > 20
    assert named - drawn == set()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: str(p.relative_to(ROOT / "templates")))
def test_template_keeps_to_the_content_security_policy(path):
    text = path.read_text(encoding="utf-8")

    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:|hx-on", text) == []
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == []
    assert re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", text) == []


def test_style_sheet_has_every_class_that_we_could_use():
    published = set(vendor.CLASSES.read_text(encoding="utf-8").split())
    ours = vendor.classes((vendor.VENDOR / "tabler" / "tabler.min.css").read_text(encoding="utf-8"))

    assert len(ours) > 50
    assert published & vendor.used_words() - ours == set(), "run python tools/vendor.py"
