"""JupyterLab for leases of `make up`: an environment of its own, made once, from the lock file's group ``notebook``.

    python -m portal.embedded.notebook [jupyterlab]

Run by `make notebook`, and by the demo's agents when somebody first opens a notebook. Leases of root's demo run as
`nobody`, so the environment lies where that account can go, on a Python that it can start.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from portal.embedded.places import CHECKOUT, SystemAccount, can_reach, engine_account, open_folder

APP = "jupyterlab"
GROUP = "notebook"
PROGRAM = "jupyter-lab"
LEAST_PYTHON = (3, 11)
PYTHONS = ("python3", "python3.13", "python3.12", "python3.11", "python3.14")


class CannotInstall(Exception):
    """The notebook cannot be installed here; the sentence says why."""


NOT_FOR_UV = ("VIRTUAL_ENV", "UV_RUN_RECURSION_DEPTH", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")


def path(env: Mapping[str, str]) -> str:
    """Return what the demo's agents look for programs of apps in."""
    return str(_where(env, engine_account()) / "bin")


def install(env: Mapping[str, str]) -> Path:
    """Make the environment, or find it made; raises CannotInstall. One at a time over all processes."""
    account = engine_account()
    where = _where(env, account)
    where.parent.mkdir(parents=True, exist_ok=True)
    with (where.parent / f"{GROUP}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if can_reach(account, where / "bin" / PROGRAM):
            return where
        # Leases cannot write there: without byte code each start of theirs would compile all of it anew.
        command = [
            _uv(),
            "sync",
            "--frozen",
            "--only-group",
            GROUP,
            "--no-install-workspace",
            "--compile-bytecode",
        ]
        options = ["--python", python_for(account), "--link-mode", "copy", "--no-progress"]
        # uv would otherwise change the environment that this runs in, and put its byte code elsewhere.
        own = {name: value for name, value in env.items() if name not in NOT_FOR_UV}
        print(f"Installing JupyterLab into {where}", flush=True)
        done = subprocess.run(
            [*command, *options], cwd=CHECKOUT, env={**own, "UV_PROJECT_ENVIRONMENT": str(where)}, check=False
        )
        if done.returncode or not can_reach(account, where / "bin" / PROGRAM):
            raise CannotInstall("uv could not install JupyterLab; is there a way to a package index?")
    return where


def python_for(account: SystemAccount) -> str:
    """Return a Python that the account of leases can start; raises CannotInstall."""
    for found in (sys.executable, *(shutil.which(name, path="/usr/local/bin:/usr/bin") for name in PYTHONS)):
        if found and can_reach(account, Path(os.path.realpath(found))) and _is_new_enough(found):
            return found
    raise CannotInstall(
        f"no Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer that {account.name} can start:"
        " install one in /usr/bin, or start as an ordinary user."
    )


def _is_new_enough(python: str) -> bool:
    code = f"import sys; sys.exit(sys.version_info < {LEAST_PYTHON})"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, check=False).returncode == 0


def _uv() -> str:
    found = shutil.which("uv") or str(CHECKOUT / ".uv" / "bin" / "uv")
    if not os.access(found, os.X_OK):
        raise CannotInstall("uv is not there; `make notebook` brings it.")
    return found


def _where(env: Mapping[str, str], account: SystemAccount) -> Path:
    """Return where it lies: as named, in the data folder, or outside where the account cannot go there."""
    if named := env.get("BERTH_NOTEBOOK"):
        return Path(named).absolute()
    return open_folder(Path(env.get("BERTH_DATA") or CHECKOUT / ".berth"), account) / GROUP


def main(words: list[str]) -> int:
    """Install, and say where or why not; returns the exit status. Other apps are their site's to install."""
    if words and words[0] != APP:
        print(f"{words[0]} is not installed by this; put it where the holder's shell finds it.")
        return 1
    try:
        where = install(os.environ)
    except (CannotInstall, OSError) as no:
        print(f"JupyterLab cannot be installed: {no}")
        return 1
    print(f"JupyterLab is in {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
