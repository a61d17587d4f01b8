"""Which parts of this host the agent's unit cannot see, compared with what its program needs to start.

ProtectHome=yes makes homes empty for a service (systemd.exec(5)); a script there, its interpreter, or the source of
an editable installation would be found missing only when systemd starts it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

HIDDEN: Final = ("/home", "/root", "/run/user")
# What neither systemd nor sudo takes for anything but a letter of a path.
PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9/._+-]+")
# The first lines of a script whose interpreter has a long path: sh starts it (pip, uv).
LONG_PATH: Final = re.compile(r"""^'''exec' ["']?(/[^"'\n]+?)["']? "\$0" """, re.MULTILINE)


def unseen(program: str, root: Path = Path("/")) -> str:
    """Return why the agent's unit could not start a program, "" where nothing of it lies in a home.

    ``root`` stands before every path. What cannot be read is not looked into.
    """
    for part in _parts(program, root):
        home = next((one for one in HIDDEN if part == one or part.startswith(f"{one}/")), "")
        if home:
            what = "it" if part == program else f"its part {part}"
            return (
                f"the agent's unit could not start {program}: {what} lies in {home}, which is hidden from services"
                " (ProtectHome=yes). Install the package with a Python outside of homes where only root can write,"
                " such as /usr/bin/python3 -m venv /opt/berth, and run its own bin/berth-agent install"
            )
    return ""


def _parts(program: str, root: Path) -> list[str]:
    """Return the files and folders that a start needs, each as it is named and as it is found behind links."""
    named = [program]
    interpreter = interpreter_of(_text(_at(root, program)))
    if interpreter:
        named.append(interpreter)
        prefix = _at(root, interpreter).parent.parent
        for file in sorted(prefix.glob("lib*/python3*/site-packages/*.pth")):
            named += [line.strip() for line in _text(file).splitlines() if line.startswith("/")]
    return [path for one in named for path in (one, _real(root, one))]


def interpreter_of(text: str) -> str:
    """Return the path of the program that runs a script, "" where it names none or only asks the PATH."""
    first, _, rest = text.partition("\n")
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    path = words[0] if words else ""
    if path.endswith("/sh") and (long := LONG_PATH.search(rest)):
        path = long[1]
    return "" if path.endswith("/env") else path


def _at(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _real(root: Path, path: str) -> str:
    found = _at(root, path).resolve()
    base = root.resolve()
    return f"/{found.relative_to(base)}" if found.is_relative_to(base) else str(found)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
