"""A stand-in for the module ``pynvml`` over a simulated host: the same names, structures, codes and surprises."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.drivers.simulated.library.compute import ComputeCalls
from nodeagent.drivers.simulated.library.events import EventCalls
from nodeagent.drivers.simulated.library.gpm import GpmCalls
from nodeagent.drivers.simulated.library.mig import MigCalls
from nodeagent.drivers.simulated.library.processes import ProcessCalls
from nodeagent.drivers.simulated.library.readings import ReadingCalls
from nodeagent.drivers.simulated.library.session import refuse
from nodeagent.drivers.simulated.library.settings import SettingCalls
from nodeagent.drivers.simulated.library.system import SystemCalls
from nodeagent.drivers.simulated.library.topology import TopologyCalls

__all__ = ["SimulatedNvml"]

# Functions of the binding that ask no driver.
PURE = frozenset({"nvmlStructToFriendlyObject", "nvmlFriendlyObjectToStruct", "nvmlExceptionClass"})


class SimulatedNvml(
    EventCalls,
    GpmCalls,
    MigCalls,
    ComputeCalls,
    ProcessCalls,
    ReadingCalls,
    SettingCalls,
    TopologyCalls,
    SystemCalls,
):
    """One process's copy of the library. Constants, structures and exceptions are those of ``pynvml`` itself.

    A function that is not played here raises FUNCTION_NOT_FOUND, as with a driver that lacks it; the real library
    is never called.
    """

    def __getattr__(self, name: str) -> Any:
        """Return what pynvml has under this name; raises AttributeError where it has nothing."""
        if not name.startswith(("NVML", "nvml", "c_nvml")):
            raise AttributeError(name)
        found = getattr(pynvml, name)
        if isinstance(found, FunctionType) and name not in PURE:
            found = _absent
        setattr(self, name, found)
        return found


def _absent(*_args: object, **_kwargs: object) -> Any:
    raise refuse(errors.FUNCTION_NOT_FOUND)
