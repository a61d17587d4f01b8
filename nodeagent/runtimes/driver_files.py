"""The driver's own libraries, which a container must see beside the device nodes.

They belong to the kernel module's version, so no image can carry them. NVIDIA's toolkit mounts them at the
host's paths and has a hook rebuild the loader's cache; a spec of ours has no hooks. Instead each library is
mounted under its soname in /usr/local/nvidia/lib64, where the loader looks in images that set LD_LIBRARY_PATH
as NVIDIA's do; the names are those of the toolkit's classes "compute" and "utility" (libnvidia-container).
"""

from __future__ import annotations

import platform
import re
from typing import Final

from nodeagent.host.files import Exists
from nodeagent.host.shell import ProgramError, Shell

INSIDE: Final = "/usr/local/nvidia"
LIBRARIES: Final = frozenset({
    "libcuda.so.1", "libcudadebugger.so.1", "libnvidia-ml.so.1", "libnvidia-cfg.so.1", "libnvidia-nvvm.so.4",
    "libnvidia-nvvm70.so.4", "libnvidia-ptxjitcompiler.so.1", "libnvidia-opencl.so.1", "libnvidia-allocator.so.1",
    "libnvidia-gpucomp.so.1", "libnvidia-pkcs11.so.1", "libnvidia-pkcs11-openssl3.so.1", "libnvidia-tileiras.so.1",
})  # fmt: skip
VERSIONED: Final = re.compile(r"libnvidia-(?:gpucomp|pkcs11|pkcs11-openssl3|compiler)\.so\.\d+(?:\.\d+)+")
PROGRAMS: Final = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump")
LINE: Final = re.compile(r"\s*(\S+) \(([^)]*)\) => (\S+)")
FLAVOURS: Final = {"x86_64": "x86-64", "aarch64": "AArch64"}
NVIDIA_NODE: Final = "/dev/nvidia"


def driver_mounts(
    shell: Shell, exists: Exists, *, machine: str = platform.machine()
) -> tuple[tuple[str, str], ...]:
    """Return pairs of host path and path inside, as the loader's cache (``ldconfig -p``) lists them now.

    None are found where no driver is installed; raises ProgramError where ldconfig cannot be run.
    """
    done = shell.run(["ldconfig", "-p"])
    if not done.is_ok:
        raise ProgramError(f"ldconfig -p failed: {done.said}")
    flavour = FLAVOURS.get(machine, machine)
    found: dict[str, str] = {}
    for line in done.out.splitlines():
        match = LINE.match(line)
        if match is None or flavour not in match[2]:
            continue
        name, path = match[1], match[3]
        if (name in LIBRARIES or VERSIONED.fullmatch(name)) and path.startswith("/"):
            found.setdefault(f"{INSIDE}/lib64/{name}", path)
    if found:
        found |= {f"{INSIDE}/bin/{path.rpartition('/')[2]}": path for path in PROGRAMS if exists(path)}
    return tuple((host, inside) for inside, host in sorted(found.items()))
