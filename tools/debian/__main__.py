"""``make package``: the agent as a Debian package, in build/.

    python -m tools.debian [FOLDER]

Needs dpkg-deb, no root and no network: the agent is taken from this tree, the pure Python packages it requires from
the locked environment, and cryptography is left to the distribution, which mends its weaknesses. So one package serves
every machine type and every Python from 3.11 on. The same tree gives the same bytes: files are as old as the release in
CHANGELOG.md, or as SOURCE_DATE_EPOCH says.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from email.utils import format_datetime
from importlib.metadata import Distribution, distribution
from pathlib import Path

from nodeagent.cli import parser
from nodeagent.commands.install import AGENT_FILE, SETTINGS_FILE, SLICE_FILE, files

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
NAME = "berth-agent"
MODULES = f"usr/share/{NAME}"
UNITS = "usr/lib/systemd/system"
MAINTAINER = "Maintainers of Berth <maintainers@berth.invalid>"
# The distribution's own packages of these are new enough, and are mended by it.
FROM_DEBIAN = {"cryptography": "python3-cryptography (>= 38)"}
# Compiled parts that these do without; any other would bind the package to a machine type and a Python.
FASTER_ONLY = {"websockets"}
SUMMARY = "node agent of Berth, the portal for GPU time"
DESCRIPTION = """\
 Makes the leases that a Berth portal grants real on this GPU host (MIG slices,
 MPS shares, whole devices) and reports what it observes. It dials out to the
 portal over one WebSocket and needs no open port.
"""


def main() -> int:
    """Build the package; returns the exit code."""
    known = argparse.ArgumentParser(prog="python -m tools.debian", description=__doc__)
    known.add_argument("folder", nargs="?", type=Path, default=ROOT / "build")
    if shutil.which("dpkg-deb") is None:
        print("make package needs dpkg-deb, which Debian and Ubuntu have", file=sys.stderr)
        return 1
    print(build(known.parse_args().folder))
    return 0


def build(folder: Path) -> Path:
    """Write the package into a folder; returns its path. Raises SystemExit for a requirement that does not fit."""
    version, released = release()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or released.timestamp())
    made = folder / f"{NAME}_{version}-1_all.deb"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / NAME
        lay_out(tree, version, released)
        describe(tree, version)
        for path in (tree, *tree.rglob("*")):
            os.utime(path, (epoch, epoch))
            path.chmod(0o755 if path.is_dir() or path.parent.name in ("bin", "DEBIAN") else 0o644)
        for plain in ("control", "conffiles", "md5sums"):
            (tree / "DEBIAN" / plain).chmod(0o644)
        # It names a token, or holds it.
        (tree / SETTINGS_FILE.lstrip("/")).chmod(0o640)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zxz", "--threads-max=1", "--build", tree, made],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return made


def release() -> tuple[str, datetime]:
    """Return the version, and the noon of its day in CHANGELOG.md."""
    version = project()["version"]
    found = re.search(
        rf"^## {re.escape(version)} – (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    if not found:
        sys.exit(f"CHANGELOG.md has no dated heading for {version}")
    return version, datetime.fromisoformat(found[1]).replace(hour=12, tzinfo=UTC)


def project() -> dict[str, object]:
    """Return what the agent's pyproject.toml says about it."""
    return dict(tomllib.loads((ROOT / "nodeagent" / "pyproject.toml").read_text())["project"])


def shipped() -> list[Distribution]:
    """Return the requirements that go into the package; raises SystemExit where one has requirements of its own."""
    needed = [re.split(r"[ <>=~!\[;]", line)[0] for line in project()["dependencies"]]  # type: ignore[attr-defined]
    found = [distribution(name) for name in needed if name not in FROM_DEBIAN]
    for one in found:
        if more := [line for line in one.requires or [] if "extra ==" not in line]:
            sys.exit(
                f"{one.name} requires {', '.join(more)}: ship that too, or take it from Debian (tools/debian)"
            )
    return found


def modules_of(one: Distribution) -> Iterator[tuple[Path, str]]:
    """Yield where each module of a distribution lies and its place below the modules' folder."""
    for file in one.files or ():
        inside = ".." not in file.parts and "__pycache__" not in file.parts
        if file.suffix in (".so", ".pyd") and one.name not in FASTER_ONLY:
            sys.exit(f"{one.name} is compiled ({file}): take it from Debian (FROM_DEBIAN in tools/debian)")
        # NVIDIA's wheel has an example beside its one module, under a name that anybody might use.
        if inside and str(file) != "example.py" and (file.suffix == ".py" or file.name == "METADATA"):
            yield Path(str(file.locate())), str(file)


def lay_out(tree: Path, version: str, released: datetime) -> None:
    """Write every file of the package as it lies on the host."""
    for path in sorted((ROOT / "nodeagent").rglob("*")):
        if path.suffix in (".py", ".json"):
            place(tree / MODULES / path.relative_to(ROOT), path.read_bytes())
    for one in shipped():
        for path, inside in modules_of(one):
            place(tree / MODULES / inside, path.read_bytes())
    place(tree / "usr/bin" / NAME, (HERE / NAME).read_bytes())
    for path, text in files(f"/usr/bin/{NAME} run", [], close_logins=False).items():
        assert path in (AGENT_FILE, SLICE_FILE)
        place(tree / UNITS / Path(path).name, text.encode())
    place(tree / SETTINGS_FILE.lstrip("/"), (HERE / "agent.env").read_bytes())
    about = tree / "usr/share/doc" / NAME
    place(about / "copyright", copyright_text().encode())
    place(about / "changelog.gz", packed((ROOT / "CHANGELOG.md").read_text()))
    entry = f"{NAME} ({version}-1) unstable; urgency=medium\n\n  * Release {version}; changelog.gz says what is new.\n"
    place(about / "changelog.Debian.gz", packed(f"{entry}\n -- {MAINTAINER}  {format_datetime(released)}\n"))
    place(tree / "usr/share/lintian/overrides" / NAME, (HERE / "lintian-overrides").read_bytes())
    place(tree / "usr/share/man/man8" / f"{NAME}.8.gz", packed(manual(version, released)))


def describe(tree: Path, version: str) -> None:
    """Write what dpkg reads: control, conffiles, checksums and the scripts."""
    inside = [path for path in sorted(tree.rglob("*")) if path.is_file()]
    size = sum(max(1, -(-path.stat().st_size // 1024)) for path in inside)
    control = f"""\
Package: {NAME}
Version: {version}-1
Architecture: all
Maintainer: {MAINTAINER}
Installed-Size: {size}
Depends: python3 (>= 3.11), {", ".join(FROM_DEBIAN.values())}
Recommends: systemd, sudo
Suggests: python3-asyncssh (>= 2.14)
Section: admin
Priority: optional
Description: {SUMMARY}
{DESCRIPTION}"""
    place(tree / "DEBIAN/control", control.encode())
    place(tree / "DEBIAN/conffiles", f"{SETTINGS_FILE}\n".encode())
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in inside]
    place(tree / "DEBIAN/md5sums", "".join(one for one in sums if not one.endswith("agent.env\n")).encode())
    for script in ("postinst", "prerm", "postrm"):
        place(tree / "DEBIAN" / script, (HERE / script).read_bytes())


def copyright_text() -> str:
    """Return our licence by reference, and that of each package inside in its own words."""
    text = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: Berth\n",
        "Files: *\nCopyright: the authors of Berth\nLicense: Apache-2.0\n"
        " On Debian systems the whole text is in /usr/share/common-licenses/Apache-2.0.\n",
    ]
    for one in shipped():
        about = one.metadata
        texts = {
            file.name: Path(str(file.locate())).read_text()
            for file in one.files or ()
            if re.match(r"(LICEN|NOTICE|COPYING)", file.name)
        }
        is_apache = "Apache License" in texts.get("LICENSE", "")
        if is_apache:
            texts["LICENSE"] = "The whole text is in /usr/share/common-licenses/Apache-2.0."
        words = "\n".join(texts.values()) or str(about.get("License", ""))
        lines = "".join(f" {line.rstrip() or '.'}\n" for line in words.strip().splitlines())
        names = ", ".join(sorted({Path(inside).parts[0] for _, inside in modules_of(one)}))
        author = about.get("Author") or about.get("Author-email") or f"the authors of {one.name}"
        short = "Apache-2.0" if is_apache else "BSD-3-Clause"
        text.append(f"Files: {names}\nCopyright: {author}\nLicense: {short} of {one.name}\n{lines}")
    return "\n".join(text)


def manual(version: str, released: datetime) -> str:
    """Return the manual page: what --help says."""
    said = io.StringIO()
    with redirect_stdout(said):
        parser({}).print_help()
    lines = [re.sub(r"^([.'])", r"\\&\1", line) for line in said.getvalue().replace("\\", "\\e").splitlines()]
    body = "\n".join(lines).replace("-", "\\-")
    day = released.date().isoformat()
    return (
        f'.TH BERTH-AGENT 8 "{day}" "Berth {version}" "System administration"\n'
        f".SH NAME\nberth\\-agent \\- {SUMMARY}\n.SH DESCRIPTION\n.nf\n{body}\n.fi\n"
    )


def packed(text: str) -> bytes:
    """Return a text as gzip packs it, without a name and a time."""
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def place(path: Path, content: bytes) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
