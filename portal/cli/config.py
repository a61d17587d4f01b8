"""Where Berth is and with which token: environment first, then a file that only its owner reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Config:
    """An address and a token; either may be empty."""

    url: str
    token: str


def path(environ: Mapping[str, str]) -> Path:
    """Return the file's place: ``$XDG_CONFIG_HOME/berth/config.json`` or below ``~/.config``."""
    base = environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if base.startswith("/") else Path(environ.get("HOME") or Path.home()) / ".config"
    return folder / "berth" / "config.json"


def load(environ: Mapping[str, str]) -> Config:
    """Return what holds now. BERTH_URL and BERTH_TOKEN win over the file; a broken file counts as empty.

    A token from the file goes only to the address it was made for.
    """
    stored = _read(path(environ))
    url = (environ.get("BERTH_URL") or stored.url or DEFAULT_URL).rstrip("/")
    token = environ.get("BERTH_TOKEN") or (stored.token if url == (stored.url or url) else "")
    return Config(url, token)


def save(config: Config, environ: Mapping[str, str]) -> Path:
    """Write the file so that nobody else can read it, whole or not at all; returns its place."""
    target = path(environ)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = target.with_suffix(f".{os.getpid()}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"url": config.url, "token": config.token}, file)
    os.replace(fresh, target)
    return target


def forget(environ: Mapping[str, str]) -> bool:
    """Remove the file; False when there was none."""
    target = path(environ)
    existed = target.exists()
    target.unlink(missing_ok=True)
    return existed


def _read(target: Path) -> Config:
    try:
        found = json.loads(target.read_text(encoding="utf-8"))
        return Config(str(found.get("url", "")), str(found.get("token", "")))
    except (OSError, ValueError, AttributeError):
        return Config("", "")
