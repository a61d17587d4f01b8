"""Invoices and reports on paper, typeset by typst: an extra, as it brings 81 MB that not every installation wants."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from portal.common.errors import Conflict

SOURCE = "paper/paper.typ"
# Faces with Chinese characters that people have, the first one there is used for all text; then what typst brings.
CHINESE = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei",
           "WenQuanYi Micro Hei")  # fmt: skip
LATIN = ("DejaVu Sans", "Liberation Sans", "Libertinus Serif")
_ALONE = threading.Lock()


@dataclass(frozen=True, slots=True)
class PaperColumn:
    """A column: figures stand right, wide ones share what room is left."""

    title: str
    figure: bool = True
    wide: bool = False


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """A row of cells; ``depth`` says how far the first one is set in."""

    cells: Sequence[str]
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Paper:
    """What stands on it, all in the reader's language. ``day`` dates the file: the same paper has the same bytes."""

    title: str
    issuer: str
    state: str
    day: date
    facts: Sequence[tuple[str, str]]
    columns: Sequence[PaperColumn]
    rows: Sequence[PrintedRow]
    total: Sequence[str]
    notes: Sequence[str]
    foot: str


def pdf(paper: Paper) -> bytes:
    """Return the paper as PDF/A-2a, tagged; raises Conflict, with what to do, where it cannot be typeset."""
    found = asdict(paper) | {"day": [paper.day.year, paper.day.month, paper.day.day]}
    is_chinese = any(ord(letter) >= 0x2E80 for letter in json.dumps(found, ensure_ascii=False))
    compiler, families = _compiler()
    faces = [name for name in CHINESE if name in families]
    if is_chinese and not faces:
        raise Conflict(
            _("This PDF has Chinese characters, and the server has no font with them. Ask an operator to install one,"
              " such as fonts-noto-cjk, or to name a folder with fonts in BERTH_PDF_FONTS.")
        )  # fmt: skip
    found |= {
        "lang": (get_language() or "en")[:2],
        "fonts": [*faces[:1], *(f for f in LATIN if f in families)],
    }
    with _ALONE:
        return bytes(
            compiler.compile(
                input=str(_source()),
                sys_inputs={"paper": json.dumps(found)},
                format="pdf",
                pdf_standards=["a-2a"],
            )
        )


def _source() -> Path:
    return Path(settings.TEMPLATES[0]["DIRS"][0]) / SOURCE


@functools.cache
def _compiler() -> tuple[Any, frozenset[str]]:
    """Return the one compiler of this process, which keeps fonts and what it has read, and the faces it knows."""
    try:
        import typst
    except ImportError as error:
        raise Conflict(
            _("This installation makes no PDFs. Ask an operator to install the extra “berth[pdf]”; CSV and XLSX have"
              " the same figures.")
        ) from error  # fmt: skip
    folders = [settings.BERTH_PDF_FONTS] if settings.BERTH_PDF_FONTS else []
    fonts = typst.Fonts(include_system_fonts=True, include_embedded_fonts=True, font_paths=folders)
    return typst.Compiler(root=str(_source().parent), font_paths=fonts), frozenset(fonts.families())
