"""A program that opens a device through the CUDA driver and takes memory when told to; run as a script by holders.py.

Usage: ``python hold_cuda.py [CGROUP]``. It says ``ready`` or ``no <why>``, answers each line ``take MIB`` with the
code of the CUDA driver (0: it has the memory, 2: there is none for it) and ends when its input does. ``fill WORD``
takes all memory there is and writes the word (32 bits) everywhere; ``find WORD`` takes all there is, writes nothing and
counts the word. Both answer with MiB and words. The device is the one that CUDA_VISIBLE_DEVICES names. Names and codes:
NVIDIA, "CUDA Driver API".
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

LIBRARY = "libcuda.so.1"
MIB = 1024 * 1024
PIECE = 64 * MIB
CLEAR, SEEN = bytes(PIECE), ctypes.create_string_buffer(PIECE)


def serve(cuda: Any, lines: Iterable[str], say: Callable[[str], None]) -> None:
    """Open the device, then obey line by line; the primary context ends with the program."""
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    steps: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
    )
    for name, args in steps:
        if code := getattr(cuda, name)(*args):
            say(f"no program can open this device: {name} answers {code}")
            return
    say("ready")
    for line in lines:
        verb, number = line.split()
        if verb == "take":
            say(str(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(number) * MIB))))
        else:
            pieces = list(_all(cuda))
            work = _fill if verb == "fill" else _find
            say(f"{len(pieces) * PIECE // MIB} {sum(work(cuda, piece, int(number)) for piece in pieces)}")


def _all(cuda: Any) -> Iterator[ctypes.c_uint64]:
    """Take all memory that there is, piece by piece; nothing is written to it."""
    address = ctypes.c_uint64()
    while not cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(PIECE)):
        yield address
        address = ctypes.c_uint64()


def _fill(cuda: Any, piece: ctypes.c_uint64, word: int) -> int:
    if code := cuda.cuMemsetD32_v2(piece, ctypes.c_uint(word), ctypes.c_size_t(PIECE // 4)):
        raise RuntimeError(f"cuMemsetD32 answers {code}")
    return PIECE // 4


def _find(cuda: Any, piece: ctypes.c_uint64, word: int) -> int:
    if code := cuda.cuMemcpyDtoH_v2(SEEN, piece, ctypes.c_size_t(PIECE)):
        raise RuntimeError(f"cuMemcpyDtoH answers {code}")
    # What was cleared is zero nearly everywhere, and comparing takes a tenth of the time that counting does.
    if ctypes.CDLL(None).memcmp(SEEN, CLEAR, ctypes.c_size_t(PIECE)) == 0:
        return 0
    return SEEN.raw.count(word.to_bytes(4, "little"))


def main(argv: list[str]) -> int:
    """Enter the cgroup, if one is named, before CUDA is touched; then serve standard input."""
    if argv:
        with open(os.path.join(argv[0], "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(os.getpid()))

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        say(f"no program can be started on the device: {LIBRARY} was not found; it comes with the driver")
        return 0
    serve(cuda, sys.stdin, say)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
