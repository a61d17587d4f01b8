"""A stand-in for the module ``pynvml`` over a simulated host: the same names, structures, codes and surprises."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pynvml

from nodeagent.drivers import errors
from nodeagent.simulation.nvml.compute import ComputeCalls
from nodeagent.simulation.nvml.events import EventCalls
from nodeagent.simulation.nvml.gpm import GpmCalls
from nodeagent.simulation.nvml.mig import MigCalls
from nodeagent.simulation.nvml.processes import ProcessCalls
from nodeagent.simulation.nvml.readings import ReadingCalls
from nodeagent.simulation.nvml.session import refuse
from nodeagent.simulation.nvml.settings import SettingCalls
from nodeagent.simulation.nvml.system import SystemCalls
from nodeagent.simulation.nvml.topology import TopologyCalls

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
