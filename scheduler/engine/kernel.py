"""Kernels: functions over arrays that run as plain Python or compiled, with the same answers.

A fleet of some dozen nodes is served by plain Python; on hundreds of nodes the same source is compiled
(numba, the dependency group ``fast``) the first time it is needed and kept on disk. A kernel may use scalars, numpy
arrays, named tuples of them and other kernels, nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

Function = Callable[..., Any]
Kernel = TypeVar("Kernel", bound=Function)
KEPT = 4


def can_compile() -> bool:
    """Whether the compiler is installed and not switched off (``BERTH_KERNELS=python``)."""
    return os.environ.get("BERTH_KERNELS", "") != "python" and find_spec("numba") is not None


def specialise(function: Function, name: str, **helpers: Function) -> Function:
    """A copy of a kernel called ``name`` whose global names in ``helpers`` mean those functions."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__, {**function.__globals__, **helpers}, name)
    copy.__qualname__ = name  # what the compiler's cache on disk goes by
    copy.__module__ = function.__module__
    copy.__dict__.update(function.__dict__)
    return copy


def inlined(function: Kernel) -> Kernel:
    """Mark a kernel that is called for every node, so that it is compiled into those that call it.

    A call that is not hands over each field of each column anew, which takes longer than rating a node.
    """
    function.__dict__["is_inlined"] = True
    return function


@cache
def compiled(function: Function) -> Any:
    """The kernel compiled for this machine, with every kernel it calls. Needs ``can_compile()``.

    Kept on disk as a whole: what it calls is compiled only when it itself is.
    """
    return _compiler()(cache=True)(_bound(function))


@cache
def _part(function: Function) -> Any:
    """The kernel compiled for other kernels alone: what lets Python call it takes longer to compile than most do.

    LLVM puts inlined kernels into their callers. Numba's own ``inline`` types and rewrites them anew in each.
    """
    is_inlined = getattr(function, "is_inlined", False)
    return _compiler()(forceinline=is_inlined, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        _bound(function)
    )


def _compiler() -> Any:
    numba: Any = import_module("numba")
    numba.config.CACHE_DIR = str(_cache_dir())
    # Kernels allocate nothing: without reference counting of the columns they run twelve times as fast.
    return partial(numba.njit, nogil=True, error_model="numpy", _nrt=False)


def _bound(function: Function) -> FunctionType:
    """A copy of the kernel whose kernels are compiled."""
    assert isinstance(function, FunctionType)
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        callee = scope.get(name)
        if isinstance(callee, FunctionType) and callee.__module__.startswith("scheduler.engine"):
            scope[name] = _part(callee)
    bound = FunctionType(function.__code__, scope, function.__name__)
    bound.__qualname__ = function.__qualname__
    bound.__module__ = function.__module__
    return bound


@cache
def _cache_dir() -> Path:
    """Compiled code lives in a private folder named after the sources: it can never be stale."""
    here = Path(__file__).parent
    digest = hashlib.sha256(sys.version.encode())
    for source in sorted(here.rglob("*.py")):
        digest.update(source.read_bytes())
    name = f"berth-kernels-{digest.hexdigest()[:16]}"
    named = os.environ.get("XDG_CACHE_HOME")
    for base in ([Path(named)] if named else []) + [Path.home() / ".cache"]:
        try:
            folder = base / name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _drop_old(base, keep=folder)
            return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix=name))


def _drop_old(base: Path, keep: Path) -> None:
    """Remove what was compiled from sources that are no more, but for the newest few that may be in use."""
    others = sorted(base.glob("berth-kernels-*"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    for folder in [one for one in others if one != keep][KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
