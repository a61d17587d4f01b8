"""Where programs of apps lie beside the holders' own: a folder of the site's. In demos what it lacks is installed when
somebody first wants it; on a real host that is for its site or its users to do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

log = logging.getLogger(__name__)

LONGEST_LINE: Final = 300
KEPT_LINES: Final = 50


class InstallFailedError(Exception):
    """It could not be installed; ``lines`` is what the installation said last."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__(lines[-1] if lines else "")
        self.lines = list(lines)


class AppPrograms:
    """The site's folders with programs, and ``installer APP``, run as the agent's account where one is missing."""

    def __init__(self, path: str = "", installer: Sequence[str] = ()) -> None:
        """``path``: folders as in PATH. Without an installer nothing is ever installed."""
        self.path = path
        self._installer = list(installer)
        self._lock = asyncio.Lock()

    def lacks(self, needs: Sequence[str]) -> bool:
        """Say whether something is to be installed first."""
        return bool(self._installer) and any(shutil.which(one, path=self.path) is None for one in needs)

    async def install(self, app: str, needs: Sequence[str], tell: Callable[[str], None]) -> None:
        """Install an app's programs; each line of progress is told. Whoever asks meanwhile waits for the same.

        Raises InstallFailedError.
        """
        async with self._lock:
            if not self.lacks(needs):
                return
            lines: deque[str] = deque(maxlen=KEPT_LINES)
            process = None
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._installer, app, stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=dict(os.environ),
                )  # fmt: skip
                assert process.stdout is not None
                async for line in process.stdout:
                    text = line.decode(errors="replace").strip()[:LONGEST_LINE]
                    if text:
                        lines.append(text)
                        tell(text)
                status = await process.wait()
            except (OSError, ValueError) as no:
                raise InstallFailedError([*lines, str(no)]) from no
            finally:
                if process is not None and process.returncode is None:
                    process.terminate()
            if status or self.lacks(needs):
                raise InstallFailedError(list(lines) or [f"the installation ended with {status}"])
