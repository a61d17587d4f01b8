"""Bring the browser libraries into ``static/vendor`` at pinned versions, with a hash of every file.

    python tools/vendor.py           fetch with ``npm pack`` and rewrite static/vendor and static/icons.svg
    python tools/vendor.py --check   compare what is there with the manifest; exit 1 on any difference

Needs ``npm`` only for the first form. Files are copied as published, but for a style sheet that is ``purged``: of it
only the rules stay whose classes occur in our templates, scripts and code. Who uses one of its classes for the first
time runs this again; a test says so.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENDOR = ROOT / "static" / "vendor"
MANIFEST = VENDOR / "manifest.json"
SPRITE = ROOT / "static" / "icons.svg"
PURGECSS = "purgecss@8.0.0"
# Where a class of a purged style sheet can be named, and every class that it had as published.
USES = ("templates/**/*.html", "static/js/*.js", "portal/**/*.py")
CLASSES = ROOT / "tests" / "data" / "tabler_classes.txt"

MIT = """The MIT License (MIT)

{copyright}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


@dataclass(frozen=True)
class Package:
    """One npm package: which files we take, and the copyright line where it ships no licence file."""

    name: str
    version: str
    folder: str
    licence: str
    files: tuple[str, ...]
    copyright: str = ""
    purged: bool = False


PACKAGES = (
    Package(
        "@tabler/core",
        "1.6.1",
        "tabler",
        "MIT",
        ("dist/css/tabler.min.css",),
        copyright="Copyright (c) 2018-2026 The Tabler Authors and codecalm.net Paweł Kuna",
        purged=True,
    ),
    Package("htmx.org", "4.0.1", "htmx", "0BSD", ("dist/htmx.min.js",)),
    Package("@xterm/xterm", "6.0.0", "xterm", "MIT", ("lib/xterm.js", "css/xterm.css")),
    Package("@xterm/addon-fit", "0.11.0", "xterm-fit", "MIT", ("lib/addon-fit.js",)),
    Package("uplot", "1.6.32", "uplot", "MIT", ("dist/uPlot.iife.min.js", "dist/uPlot.min.css")),
)
ICONS = Package("@tabler/icons", "3.51.0", "icons", "MIT", ())
ICON_NAMES = (
    "activity",
    "adjustments",
    "alert-triangle",
    "anchor",
    "arrow-back-up",
    "arrow-right",
    "ban",
    "bell",
    "bolt",
    "building",
    "calendar",
    "check",
    "checkbox",
    "chevron-down",
    "chevron-left",
    "chevron-right",
    "chevron-up",
    "circle-check",
    "circle-dashed",
    "circle-plus",
    "circle-x",
    "clock",
    "clock-pause",
    "coin",
    "copy",
    "cpu",
    "device-desktop",
    "dots",
    "download",
    "external-link",
    "file-invoice",
    "filter",
    "gauge",
    "hand-stop",
    "history",
    "home",
    "hourglass",
    "info-circle",
    "key",
    "language",
    "layout-grid",
    "list-details",
    "loader-2",
    "lock",
    "logout",
    "mood-empty",
    "moon",
    "pencil",
    "player-play",
    "player-stop",
    "plug-connected",
    "plus",
    "receipt",
    "refresh",
    "search",
    "selector",
    "send",
    "server-2",
    "shield-check",
    "speakerphone",
    "sun",
    "tag",
    "temperature",
    "terminal-2",
    "tools",
    "trash",
    "user",
    "users",
    "wash",
    "wifi-off",
    "x",
)


def sha256(path: Path) -> str:
    """Hex digest of one file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unpack(package: Package, into: Path) -> tuple[Path, str]:
    """Fetch and unpack one package; gives its folder and the integrity string that npm states."""
    spec = f"{package.name}@{package.version}"
    told = subprocess.run(
        ["npm", "pack", "--json", spec], cwd=into, check=True, capture_output=True, text=True
    ).stdout
    fact = json.loads(told)[0]
    folder = into / package.folder
    with tarfile.open(into / fact["filename"]) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package", fact["integrity"]


def write_licence(package: Package, source: Path, target: Path) -> None:
    """Copy the licence of a package, or write it out where the package ships only its name."""
    published = source / "LICENSE"
    if published.exists():
        shutil.copyfile(published, target)
    else:
        target.write_text(MIT.format(copyright=package.copyright), encoding="utf-8")


def entry(package: Package, integrity: str, paths: list[Path]) -> dict[str, Any]:
    """One line of the manifest; the paths are relative to ``static``."""
    static = ROOT / "static"
    return {
        "package": package.name,
        "version": package.version,
        "licence": package.licence,
        "integrity": integrity,
        "files": {str(p.relative_to(static)): sha256(p) for p in paths},
    }


def vendor(package: Package, work: Path) -> dict[str, Any]:
    """Copy the chosen files of one package and say what was copied."""
    source, integrity = unpack(package, work)
    folder = VENDOR / package.folder
    folder.mkdir(parents=True)
    licence = folder / "LICENSE"
    write_licence(package, source, licence)
    copied = [licence]
    for name in package.files:
        target = folder / Path(name).name
        # The published file may name a source map that we do not ship: browsers would ask for it in vain.
        text = re.sub(
            r"\n?(//|/\*)# sourceMappingURL=\S+( \*/)?\s*$", "\n", (source / name).read_text(encoding="utf-8")
        )
        target.write_text(text, encoding="utf-8")
        if package.purged:
            CLASSES.write_text("\n".join(sorted(classes(text))) + "\n", encoding="utf-8")
            purge(target)
        copied.append(target)
    return entry(package, integrity, copied)


def classes(css: str) -> set[str]:
    """Every class that a rule of the style sheet asks for alone, not only together with another class."""
    selectors = [s for rule in re.findall(r"([^{};]+)\{", css) for s in rule.split(",")]
    asked = [set(re.findall(r"\.([a-zA-Z_-][\w-]*)", selector)) for selector in selectors]
    return {name for names in asked if len(names) == 1 for name in names}


def used_words() -> set[str]:
    """Every word of our sources that could be a class."""
    files = [file for pattern in USES for file in ROOT.glob(pattern)]
    return {word for file in files for word in re.findall(r"[\w-]+", file.read_text(encoding="utf-8"))}


def purge(css: Path) -> None:
    """Take out of a style sheet what nothing of ours can use: classes and fonts."""
    options = ["--css", str(css), "--output", str(css), "--content", *USES, "--font-face"]
    subprocess.run(["npx", "--yes", PURGECSS, *options], cwd=ROOT, check=True, capture_output=True)


def symbol(name: str, svg: str) -> str:
    """One icon as a symbol of the sprite; stroke and colour come from the style sheet."""
    shapes = [s for s in re.findall(r"<(?:path|circle|line|rect)\b[^>]*/>", svg) if "M0 0h24v24H0z" not in s]
    return f'<symbol id="{name}" viewBox="0 0 24 24">{"".join(" ".join(s.split()) for s in shapes)}</symbol>'


def sprite(work: Path) -> dict[str, Any]:
    """Write the sprite of the icons we use and say what is in it."""
    source, integrity = unpack(ICONS, work)
    outline = source / "icons" / "outline"
    symbols = [symbol(n, (outline / f"{n}.svg").read_text(encoding="utf-8")) for n in ICON_NAMES]
    SPRITE.write_text(
        '<svg xmlns="http://www.w3.org/2000/svg">\n' + "\n".join(symbols) + "\n</svg>\n", encoding="utf-8"
    )
    licence = VENDOR / ICONS.folder / "LICENSE"
    licence.parent.mkdir(parents=True)
    write_licence(ICONS, source, licence)
    return entry(ICONS, integrity, [licence, SPRITE])


def fetch() -> None:
    """Replace ``static/vendor`` and the sprite by the pinned packages."""
    with tempfile.TemporaryDirectory() as work:
        shutil.rmtree(VENDOR, ignore_errors=True)
        lines = [vendor(p, Path(work)) for p in PACKAGES]
        lines.append(sprite(Path(work)))
    MANIFEST.write_text(json.dumps(lines, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def differences() -> list[str]:
    """What differs between the manifest and the files: empty when all is as recorded."""
    static = ROOT / "static"
    recorded = {
        n: h for line in json.loads(MANIFEST.read_text(encoding="utf-8")) for n, h in line["files"].items()
    }
    found = {str(p.relative_to(static)) for p in VENDOR.rglob("*") if p.is_file() and p != MANIFEST}
    strange = [f"not in the manifest: {n}" for n in sorted(found - set(recorded))]
    missing = [f"missing: {n}" for n in recorded if not (static / n).exists()]
    changed = [
        f"changed: {n}" for n, h in recorded.items() if (static / n).exists() and sha256(static / n) != h
    ]
    return strange + missing + changed


def main() -> int:
    """Fetch, or check with ``--check``."""
    if "--check" not in sys.argv[1:]:
        fetch()
    wrong = differences()
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
