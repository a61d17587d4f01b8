"""How a job ended, in words: what an exit code means, and why one never ran."""

from __future__ import annotations

import signal as signals

from django.utils.translation import gettext as _

from portal.jobs.models import Job, JobAttempt
from portal.jobs.states import JobState


def outcome_text(one: Job | JobAttempt) -> str:
    """Return how a job or an attempt ended as a sentence, "" while it has not."""
    if one.state in (JobState.WAITING, JobState.STARTING, JobState.RUNNING):
        return ""
    return _by_cause(one) or _by_exit(one)


def _by_cause(one: Job | JobAttempt) -> str:
    said = {
        "command": _("“%(word)s” was not found on the node, or is no program.") % {"word": one.word},
        "workdir": _("The working directory %(word)s cannot be used on the node.") % {"word": one.word},
        "not_entered": _("The node could not start it in the lease: %(word)s") % {"word": one.word},
        "no_jobs": _("The node of its lease runs no jobs. Ask an operator."),
        "vanished": _("Its first process on the node vanished; how it ended is not known."),
        "preempted": _("Its lease was preempted."),
        "node_lost": _("Its node or device failed."),
        "maintenance": _("Its lease made way for maintenance."),
        "released": _("Its lease was released."),
        "cancelled": _("It was cancelled."),
        "time": _("Its time was up (124)."),
        "after": _("A job that it waits for did not succeed."),
        "request": _("Its request was turned down or taken back."),
        "refused": one.word,
        "secret": _("The secret %(word)s is not there any more.") % {"word": one.word},
        "oom": _("It ran out of memory (137): something in the lease was ended for it."),
        "memory_or_kill": "",
    }.get(one.why, "")
    return str(said)


def _by_exit(one: Job | JobAttempt) -> str:
    if one.signal:
        if one.signal == signals.SIGKILL:
            return _("It was killed (137), not by the lease's memory limit.")
        if one.signal == signals.SIGTERM:
            return _("It was asked to stop, and did (143).")
        return _("It was ended by signal %(signal)d (%(name)s).") % {
            "signal": one.signal,
            "name": _name_of(one.signal),
        }
    fixed = {
        0: _("It succeeded."),
        75: _("It asked to be run again (75)."),
        124: _("A command in it ran into a time limit of its own (124)."),
        126: _("A command in it is no program, or may not be run (126). Its log says which."),
        127: _("A command in it was not found (127). Its log says which."),
        137: _("A command in it was killed (137)."),
        143: _("A command in it was asked to stop (143)."),
    }
    if one.exit_code is None:
        return _("How it ended is not known.")
    return fixed.get(one.exit_code) or _("It ended with exit code %(code)d.") % {"code": one.exit_code}


def _name_of(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return str(number)
