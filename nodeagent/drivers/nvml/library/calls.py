"""NVML calls that answer or refuse with a sentence: what happened, why, what to allow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from nodeagent.drivers import errors
from nodeagent.drivers.errors import DriverUnavailableError, NvmlLikeError

UNINITIALIZED: Final = 1

WHY: Final[dict[int, str]] = {
    UNINITIALIZED: "the driver was unloaded under the agent; restart the agent",
    errors.INVALID_ARGUMENT: "the driver does not accept it; what it names may have changed meanwhile",
    errors.NOT_SUPPORTED: "the device cannot do that, or not in its present MIG mode",
    errors.NO_PERMISSION: "not allowed; run the agent as root or give it CAP_SYS_ADMIN",
    errors.NOT_FOUND: "it is not there any more",
    errors.TIMEOUT: "the device did not answer in time",
    errors.FUNCTION_NOT_FOUND: "the installed driver does not know this call; a newer one does",
    errors.GPU_IS_LOST: "the GPU has fallen off the bus (XID 79); the node must be restarted",
    errors.RESET_REQUIRED: "the GPU must be reset first",
    errors.LIB_RM_VERSION_MISMATCH: "the driver was upgraded without a restart; reboot the node",
    errors.IN_USE: "something still uses it",
    errors.INSUFFICIENT_RESOURCES: "there is no room for it, or no more of its kind fit",
    errors.UNKNOWN: "the driver gives no reason; look into the kernel log",
}

UNAVAILABLE: Final[dict[int, str]] = {
    errors.DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded; load it (modprobe nvidia)",
    errors.LIBRARY_NOT_FOUND: "no NVIDIA driver is installed here (libnvidia-ml.so.1 was not found)",
    errors.LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver was upgraded without a restart: library and kernel module differ; reboot the node"
    ),
    errors.NO_PERMISSION: "the agent may not open the NVIDIA devices; run it as root",
}


class NvmlCalls:
    """The library behind two doors: ``do`` answers or refuses, ``ask`` answers or says None."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def do(self, name: str, *args: Any, doing: str) -> Any:
        """Return the answer of a call; raises NvmlLikeError whose detail begins with what was tried."""
        function: Callable[..., Any] | None = getattr(self.library, name, None)
        if function is None:
            raise NvmlLikeError(
                errors.FUNCTION_NOT_FOUND,
                f"{doing}: the package nvidia-ml-py here does not know {name}; update it",
            )
        try:
            return function(*args)
        except self.library.NVMLError as no:
            raise self.refusal(no, doing) from no

    def ask(self, name: str, *args: Any) -> Any:
        """Return the answer of a call, None when it fails or nobody knows it."""
        function: Callable[..., Any] | None = getattr(self.library, name, None)
        if function is None:
            return None
        try:
            return function(*args)
        except self.library.NVMLError:
            return None

    def code(self, name: str, *args: Any) -> int:
        """Return how a call ends, in NVML's numbers: 0 for an answer."""
        try:
            self.do(name, *args, doing=name)
        except NvmlLikeError as no:
            return no.code
        return 0

    @staticmethod
    def refusal(no: Exception, doing: str) -> NvmlLikeError:
        """Return an error of the library as ours."""
        code = int(getattr(no, "value", errors.UNKNOWN))
        return NvmlLikeError(code, f"{doing}: {WHY.get(code, str(no))}")


def start(library: Any) -> int:
    """Open the library and return how many devices it lists; raises DriverUnavailableError with a sentence."""
    try:
        library.nvmlInit()
    except library.NVMLError as no:
        raise _unavailable(no) from no
    try:
        count = int(library.nvmlDeviceGetCount())
    except library.NVMLError as no:
        _leave(library)
        raise _unavailable(no) from no
    if not count:
        _leave(library)
        none = "the NVIDIA driver lists no device"
        raise DriverUnavailableError(none, waits_for=none)
    return count


def _unavailable(no: Exception) -> DriverUnavailableError:
    code = int(getattr(no, "value", errors.UNKNOWN))
    return DriverUnavailableError.by(code, UNAVAILABLE.get(code, f"the NVIDIA driver does not answer ({no})"))


def _leave(library: Any) -> None:
    """Let go of a library that found nothing: devices that come up later are seen by whoever opens it anew."""
    with suppress(library.NVMLError):
        library.nvmlShutdown()
