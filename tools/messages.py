"""The texts of Berth and their translations, without the gettext programs.

    python -m tools.messages update    read every text from the sources into the .po files, drop what is gone
    python -m tools.messages compile   write the .mo files beside them
    python -m tools.messages check     exit 1 when a text is new, gone, untranslated, or a .mo is stale

Texts come from Python (by syntax tree), from Django templates and from our JavaScript. The domain
``django`` serves pages and the API, ``djangojs`` serves the browser.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polib

ROOT = Path(__file__).resolve().parent.parent
LOCALE = ROOT / "locale"
PYTHON = ("portal", "scheduler")
DOMAINS = ("django", "djangojs")

PLURAL_FORMS = {"zh_Hans": "nplurals=1; plural=0;"}
# Where the texts of each call stand: (context, text, plural).
SHAPES: dict[str, tuple[int | None, int, int | None]] = {
    "gettext": (None, 0, None),
    "gettext_noop": (None, 0, None),
    "ngettext": (None, 0, 1),
    "pgettext": (0, 1, None),
    "npgettext": (0, 1, 2),
}
STRING = r"""[ub]?("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
TEMPLATE_CALL = re.compile(rf"\b(_|n?p?gettext)\(({STRING}(?:,\s*{STRING})*)")
SCRIPT_CALL = re.compile(rf"(?<![.\w])(n?p?gettext)\(\s*({STRING}(?:,\s*{STRING})*)")
PLACEHOLDER = re.compile(r"%\(\w+\)[#0 +-]*[\d.]*[a-zA-Z]|%[sd]|\{\w*(?:[.:!][^{}]*)?\}")


@dataclass(frozen=True)
class SourceText:
    """One text as the sources hold it; ``plural`` and ``context`` are None where there is none."""

    text: str
    plural: str | None = None
    context: str | None = None

    @property
    def key(self) -> tuple[str | None, str]:
        """What gettext looks a text up by."""
        return self.context, self.text


@dataclass
class Found:
    """Every text of one domain, with the files that hold it."""

    places: dict[tuple[str | None, str], set[str]] = field(default_factory=dict)
    texts: dict[tuple[str | None, str], SourceText] = field(default_factory=dict)

    def add(self, text: SourceText, place: str) -> None:
        """Note one more place of a text; a plural seen anywhere counts everywhere."""
        if not text.text:
            return
        known = self.texts.get(text.key)
        if known is None or known.plural is None:
            self.texts[text.key] = text
        self.places.setdefault(text.key, set()).add(place)


def python_texts(source: str) -> Iterator[SourceText]:
    """Texts of one Python file: calls of gettext and its kin under whatever name they were imported."""
    tree = ast.parse(source)
    names = _imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (shape := SHAPES.get(_called(node.func, names))):
            yield _text(shape, [_literal(argument) for argument in node.args])


def _imported(tree: ast.Module) -> dict[str, str]:
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("django.utils.translation"):
            names.update({a.asname or a.name: a.name.removesuffix("_lazy") for a in node.names})
    return names


def _called(func: ast.expr, names: dict[str, str]) -> str:
    if isinstance(func, ast.Name):
        return names.get(func.id, "")
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
        return func.attr.removesuffix("_lazy") if func.value.id == "translation" else ""
    return ""


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _text(shape: tuple[int | None, int, int | None], told: list[str | None]) -> SourceText:
    def at(position: int | None) -> str | None:
        return told[position] if position is not None and position < len(told) else None

    context, text, plural = shape
    return SourceText(text=at(text) or "", plural=at(plural), context=at(context))


def template_texts(source: str) -> Iterator[SourceText]:
    """Texts of one Django template, as the template engine itself will look them up."""
    from django.utils.translation.template import templatize

    for name, strings in _calls(TEMPLATE_CALL, templatize(source)):
        yield _text(SHAPES["gettext" if name == "_" else name], [ast.literal_eval(s) for s in strings])


def script_texts(source: str) -> Iterator[SourceText]:
    """Texts of one JavaScript module; their arguments are plain strings."""
    for name, strings in _calls(SCRIPT_CALL, source):
        yield _text(SHAPES[name], [ast.literal_eval(s) for s in strings])


def _calls(pattern: re.Pattern[str], source: str) -> Iterator[tuple[str, list[str]]]:
    for call in pattern.finditer(source):
        yield call[1], [string[0] for string in re.finditer(STRING, call[2])]


def extract() -> dict[str, Found]:
    """Every text of the sources by domain."""
    pages, scripts = Found(), Found()
    for folder in PYTHON:
        _collect(pages, sorted((ROOT / folder).rglob("*.py")), python_texts)
    templates = [*(ROOT / "templates").rglob("*.html"), *(ROOT / "templates").rglob("*.txt")]
    _collect(pages, sorted(templates), template_texts)
    _collect(scripts, sorted((ROOT / "static" / "js").rglob("*.js")), script_texts)
    return {"django": pages, "djangojs": scripts}


def _collect(found: Found, paths: Iterable[Path], texts_of: Callable[[str], Iterator[SourceText]]) -> None:
    for path in paths:
        if "migrations" in path.parts:
            continue
        for text in texts_of(path.read_text(encoding="utf-8")):
            found.add(text, path.relative_to(ROOT).as_posix())


def catalogues() -> Iterator[tuple[str, str, Path]]:
    """(language, domain, path of the .po) of everything Berth speaks besides English."""
    for language in PLURAL_FORMS:
        for domain in DOMAINS:
            yield language, domain, LOCALE / language / "LC_MESSAGES" / f"{domain}.po"


def read(path: Path, language: str) -> polib.POFile:
    """The catalogue at ``path``, or an empty one."""
    if path.exists():
        return polib.pofile(str(path), wrapwidth=100)
    po = polib.POFile(wrapwidth=100)
    po.metadata = {
        "Project-Id-Version": "Berth",
        "Language": language,
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=UTF-8",
        "Content-Transfer-Encoding": "8bit",
        "Plural-Forms": PLURAL_FORMS[language],
    }
    return po


def merge(po: polib.POFile, found: Found) -> None:
    """Make ``po`` hold exactly the texts found, keeping every translation that still has its text."""
    known = {(entry.msgctxt, entry.msgid): entry for entry in po}
    po.clear()
    for key in sorted(found.texts, key=lambda key: (min(found.places[key]), key[1], key[0] or "")):
        po.append(_entry(found.texts[key], sorted(found.places[key]), known.get(key)))


def _entry(text: SourceText, places: list[str], known: polib.POEntry | None) -> polib.POEntry:
    entry = polib.POEntry(msgid=text.text, msgctxt=text.context, occurrences=[(p, "") for p in places])
    said = translation(known) if known is not None else ""
    if text.plural is None:
        entry.msgstr = said
    else:
        entry.msgid_plural, entry.msgstr_plural = text.plural, {0: said}
    if any(mark.startswith("%") for mark in placeholders(text.text)):
        entry.flags = ["python-format"]
    if known is not None:
        entry.tcomment = known.tcomment
        entry.flags += ["fuzzy"] if known.fuzzy else []
    return entry


def translation(entry: polib.POEntry) -> str:
    """What the entry says in its language; empty when it is not translated."""
    return entry.msgstr_plural.get(0, "") if entry.msgid_plural else entry.msgstr


def placeholders(text: str) -> list[str]:
    """The parts of a text that are filled in later, sorted; a doubled %% is none."""
    return sorted(PLACEHOLDER.findall(text.replace("%%", "")))


def update() -> int:
    """Bring every .po to the sources; returns how many texts still need a translation."""
    found, missing = extract(), 0
    for language, domain, path in catalogues():
        po = read(path, language)
        merge(po, found[domain])
        path.parent.mkdir(parents=True, exist_ok=True)
        po.save(str(path))
        missing += sum(1 for entry in po if not translation(entry) or entry.fuzzy)
        print(f"{path.relative_to(ROOT)}: {len(po)} texts")
    return missing


def compile_all() -> None:
    """Write a .mo beside every .po; the same .po always gives the same bytes."""
    for language, _domain, path in catalogues():
        path.with_suffix(".mo").write_bytes(read(path, language).to_binary())


def problems() -> Iterator[str]:
    """Everything that keeps the catalogues from being whole, one line each."""
    found = extract()
    for language, domain, path in catalogues():
        po, name = read(path, language), path.relative_to(ROOT)
        held = {(entry.msgctxt, entry.msgid) for entry in po}
        yield from (f"{name}: not yet in it: {key[1]!r}" for key in found[domain].texts.keys() - held)
        yield from (f"{name}: no longer used: {key[1]!r}" for key in held - found[domain].texts.keys())
        for entry in po:
            yield from (f"{name}: {fault}: {entry.msgid!r}" for fault in faults(entry))
        compiled = path.with_suffix(".mo")
        if not compiled.exists() or compiled.read_bytes() != po.to_binary():
            yield f"{compiled.relative_to(ROOT)}: not compiled from its .po"


def faults(entry: polib.POEntry) -> Iterator[str]:
    """What is wrong with one translation."""
    said = translation(entry)
    if not said:
        yield "not translated"
        return
    if entry.fuzzy:
        yield "marked fuzzy"
    wanted = {tuple(placeholders(entry.msgid)), tuple(placeholders(entry.msgid_plural or entry.msgid))}
    if tuple(placeholders(said)) not in wanted:
        yield "placeholders differ"
    if re.findall(r"</?\w+", said) and sorted(re.findall(r"</?\w+", said)) != sorted(
        re.findall(r"</?\w+", entry.msgid)
    ):
        yield "tags differ"


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit status."""
    command = arguments[0] if len(arguments) == 1 else ""
    if command == "update":
        print(f"{update()} without a translation")
        compile_all()
        return 0
    if command == "compile":
        compile_all()
        return 0
    if command == "check":
        lines = list(problems())
        print("\n".join([*lines, f"{len(lines)} to do"]))
        return 1 if lines else 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
