"""Health in words of the reader's language: what a code means, and what somebody has to do.

The numbers are XIDs of NVIDIA's driver; their meanings follow NVIDIA's catalogue of XID errors
(https://docs.nvidia.com/deploy/xid-errors/). What an agent says beside them is shown as it is.
"""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from portal.fleet.health import BY_HAND, RESTING

_XIDS = {
    8: _("a program on it stopped answering"),
    13: _("a program on it did something that the GPU refuses"),
    31: _("a program on it read or wrote memory that is not its own"),
    32: _("it got commands that it cannot read"),
    38: _("its firmware reported an error"),
    43: _("a program on it was stopped after a fault of its own"),
    45: _("a program on it was ended after an earlier error"),
    46: _("it stopped processing"),
    48: _("its memory has an error that cannot be corrected"),
    61: _("its controller stopped"),
    62: _("its controller stopped"),
    63: _("a faulty part of its memory is being taken out of use"),
    64: _("a faulty part of its memory could not be taken out of use"),
    68: _("its video decoder failed"),
    69: _("a program on it did something that the GPU refuses"),
    74: _("a fast link to another GPU failed"),
    79: _("it has fallen off the bus"),
    92: _("its memory corrects unusually many errors"),
    94: _("a memory error stopped one program; the others are not concerned"),
    95: _("a memory error may have reached every program on it"),
    109: _("it could not switch between programs in time"),
    110: _("a check of its security failed"),
    119: _("its system processor does not answer"),
    120: _("its system processor failed"),
    121: _("its link to the CPU corrects errors"),
    136: _("a fast link could not be set up"),
    137: _("a program reached over a fast link for memory that is not its own"),
    140: _("its memory has an error that cannot be corrected"),
    143: _("it could not be started"),
    154: _("its driver asks for an action to recover it"),
    155: _("a fast link to another GPU failed"),
    156: _("a faulty part of it is left out after its next reset"),
    157: _("a faulty part of it could not be marked to be left out"),
    158: _("it did not answer in time and cannot go on"),
}
_XIDS |= {
    11: _("it got commands that it cannot read"),
    25: _("a program on it did something that the GPU refuses"),
    37: _("its firmware reported an error"),
    44: _("it could not switch between programs in time"),
    54: _("the power cable of its board is not connected"),
    60: _("a program's commands for its video unit failed"),
    66: _("its driver used a register that it must not use"),
    67: _("its driver used a register that it must not use"),
    78: _("a virtual GPU could not start on it"),
    80: _("a program's data reached it damaged"),
    86: _("its optical flow unit failed"),
    93: _("its board's memory for notes wears out"),
    106: _("its driver sent a test message"),
    107: _("its driver sent a test message"),
    108: _("a remote address could not be reached over a fast link"),
    122: _("its board's flash memory has an error"),
    123: _("its board's flash memory has an error"),
    124: _("its board's flash memory has an error"),
    125: _("its board's flash memory has an error"),
    139: _("its optical flow unit failed"),
    141: _("a fast path of CUDA failed for a program on it"),
    142: _("its video encoder failed"),
    151: _("the keys of a protected session could not be renewed"),
    152: _("an accelerator unit used memory that is not its own"),
    153: _("an accelerator unit did not answer in time"),
    159: _("its link to the CPU reported an error"),
    160: _("a channel of its memory is being taken out of use"),
    161: _("a channel of its memory could not be taken out of use"),
    162: _("its power smoothing works again"),
    163: _("its power smoothing is off"),
    164: _("its power smoothing wears out"),
    165: _("its power smoothing wears out"),
    171: _("its memory has an error that cannot be corrected"),
    172: _("its memory has an error that cannot be corrected"),
}
# XIDs of units that a device has several of: the number only says which one it was.
_UNITS = (
    (
        (*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136)),
        _("one of its copy engines failed"),
    ),
    ((*range(83, 85), 88, 89, *range(96, 99)), _("its video decoder failed")),
    ((82, *range(99, 106)), _("its JPEG decoder failed")),
    (range(144, 151), _XIDS[74]),
)
_XIDS |= {xid: said for xids, said in _UNITS for xid in xids}
_RECOVERY = "recovery_"  # what the driver's recovery action asks for; the action says it in words
_WORDS = {
    BY_HAND: _("an operator took it out of work"),
    RESTING: _("a lease could not be set up on it, so nothing is placed on it for a while"),
    "xid_unknown": _("its driver reported a code that this version does not know"),
    "device_lost": _("it does not answer any more"),
    "card_silent": _("one of its devices does not answer"),
    "card_late": _("not all of its devices have answered yet"),
    "row-remap-failure": _XIDS[64],
    "row_remap_failed": _XIDS[64],
    "row_remap_pending": _XIDS[63],
    "ecc_uncorrected": _XIDS[48],
    "ecc_uncorrectable": _XIDS[48],
    "ecc_corrected": _("its memory corrected an error"),
    "thermal": _("it is too hot and runs more slowly"),
    "power_brake": _("it runs more slowly, because its power supply asks for that"),
    "mps_fault": _("a program's fault stopped everybody who shares it"),
    "mps_gone": _("its MPS daemon has ended, so new programs on it run without their limits"),
    "mps_restarted": _("its MPS daemon had ended, so programs started before must be started again"),
    "limit_gone": _("a limit of a share of it did not hold, or nobody can tell whether it does"),
    "compute_mode": _("somebody changed its compute mode, so programs could work around its shares"),
    "share_unread": _("a note of who holds a share on it cannot be read"),
    "orphan_process": _("a process that belongs to no lease is on it"),
    "outside_mps": _("a process on it works around its share"),
    "events_unwatched": _("errors of its GPUs are not watched now"),
    "health_unreadable": _("its GPUs do not tell how they are"),
    "desired_refused": _("its agent refuses what it should do"),
    "journal_unwritable": _("its agent cannot write down what it does"),
    "cluster_away": _("its cluster does not answer; leases go on and nothing new begins"),
    "partition_down": _("its partition starts no jobs"),
    "no_partition": _("its partition does not exist in the cluster"),
    "no_units": _("no host of its partition has what it lends"),
    "no_class": _("the cluster does not have its device class"),
    "hosts_misfit": _("hosts that share or cut their GPUs in another way are left out"),
    "selector_unguarded": _("its selector reads what a device lacks, so no lease of it starts"),
    "selector_unreadable": _("its units cannot be counted by its selector"),
    "hosts_away": _("hosts of its pool are out of service"),
    "pool_shrunk": _("fewer of its units work than leases hold"),
    "tool_unreadable": _("the tool of its vendor gives no answer that its agent understands"),
    "health_status": _("it reports that it is not well"),
    "vnpu_cfg_recover": _("after a restart it makes slices again that belong to nobody"),
}
_ACTIONS = {
    "watch": _("Watch it: nothing has to be done yet."),
    "restart_workload": _("Let its holder start the program again; the GPU itself is sound."),
    "drain": _("Let its leases end, place nothing new on it, and have a look at it."),
    "reset_gpu": _("Reset the GPU once its leases are gone; Berth never does so by itself."),
    "reboot_node": _("Restart the node once its leases are gone."),
    "replace": _("Have the board replaced."),
}


def code_text(code: str) -> str:
    """Return what a health code means, as the end of a sentence about a device; "" for one we do not know."""
    number = xid_of(code)
    if number is not None:
        return str(_XIDS.get(number, ""))
    if code.startswith(_RECOVERY):
        return str(_XIDS[154])
    return str(_WORDS.get(code, ""))


def code_name(code: str) -> str:
    """Return how a code is called in a heading: ``XID 79``, or the word itself."""
    number = xid_of(code)
    if number is not None:
        return f"XID {number}"
    return str(_("Quarantine by an operator")) if code == BY_HAND else code


def action_text(action: str) -> str:
    """Return what an operator has to do, "" where nothing is known."""
    return str(_ACTIONS.get(action, ""))


def xid_of(code: str) -> int | None:
    """Return the XID that a code names (``79``, ``xid-79``, ``XID 79``), None for other codes."""
    text = code.lower().removeprefix("xid").lstrip("-_: ")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None
