"""Fetches an image only as long as the node has room for it: how large one is, nobody knows before it is here.

It runs as the holder, in the unit of the pull: the agent itself may see neither their home nor the disk that it is on.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

KIB_OF_GIB: Final = 1024 * 1024
KIB_OF_MIB: Final = 1024
# What no image may take of a disk: by much more than a disk can be written in the time between two looks.
LEAST_FREE_KIB: Final = 2 * KIB_OF_GIB
LOOK_EVERY: Final = "1"
# Podman keeps what it downloads in TMPDIR until it is unpacked, and leaves it there when it is killed. Systemd would
# replace braces behind a dollar sign, so there are none.
_SCRIPT: Final = """
most=$1 least=$2 every=$3; shift 3
[ -n "$TMPDIR" ] || TMPDIR=/var/tmp
TMPDIR=$(mktemp -d "$TMPDIR/berth-image-XXXXXXXX") || exit 125
export TMPDIR
store=$(PODMAN info --format '{{.Store.GraphRoot}}' 2>/dev/null)
[ -d "$store" ] || store=$HOME
free() {
  df -Pk "$store" "$TMPDIR" 2>/dev/null |
    awk 'NR > 1 && (least == "" || $4 < least) { least = $4 } END { print least }'
}
no() { echo "$1" >"$TMPDIR/why"; return 1; }
look() {
  now=$(free)
  [ -n "$now" ] || return 0
  [ "$now" -ge "$least" ] || no "less than $((least / 1048576)) GiB of disk would be left" || return 1
  [ "$most" -eq 0 ] || [ $((before - now)) -le "$most" ] ||
    no "it takes more than the $((most / 1048576)) GiB that images may take"
}
before=$(free); pull=; watch=
[ -n "$before" ] || before=0
trap 'kill $pull $watch 2>/dev/null; wait $pull; rm -rf "$TMPDIR"; exit 143' TERM INT HUP
code=125
if look; then
  "$@" & pull=$!
  { how=TERM; while sleep "$every"; do look || { kill -s "$how" "$pull"; how=KILL; }; done; } >/dev/null 2>&1 &
  watch=$!
  wait "$pull"; code=$?
  kill "$watch"
fi
why=$(cat "$TMPDIR/why" 2>/dev/null)
rm -rf "$TMPDIR"
[ "$code" -eq 0 ] || [ -z "$why" ] || { echo "Error: $why" >&2; exit 125; }
exit "$code"
"""


def while_there_is_room(
    base: Sequence[str],
    words: Sequence[str],
    most_mib: int,
    *,
    least_kib: int = LEAST_FREE_KIB,
    every: str = LOOK_EVERY,
) -> list[str]:
    """Return a command that runs ``words`` and ends them when disks become fuller than they may.

    ``base`` is how a command of Podman's begins, ``most_mib`` what one image may take on its way, 0 for no limit. Its
    last line on stderr then says why; whatever else was written in the meantime counts as well.
    """
    script = _SCRIPT.replace("PODMAN", shlex.join(base))
    return ["/bin/sh", "-c", script, "sh", str(most_mib * KIB_OF_MIB), str(least_kib), every, *words]
