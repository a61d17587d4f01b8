"""How a job ended, in words: what an exit code means, and why one never ran."""

from __future__ import annotations

import signal as signals

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.jobs.models import Artifact, Job, JobAttempt
from portal.jobs.states import JobState
from portal.leases.states import RequestState


def outcome_text(one: Job | JobAttempt) -> str:
    """Return how a job or an attempt ended as a sentence, "" while it has not."""
    if one.state in (JobState.WAITING, JobState.STARTING, JobState.RUNNING):
        return ""
    return _by_cause(one) or _by_exit(one)


def left_out_text(artifact: Artifact) -> str:
    """Return why a file that a job left was not kept, "" for one that was."""
    if not artifact.left_out:
        return ""
    if not artifact.path:
        return ngettext("%(n)d more was left out.", "%(n)d more were left out.", artifact.size) % {
            "n": artifact.size
        }
    said = {
        "too_big": _("Left out: more than %(n)d MiB in all.") % {"n": settings.JOB_ARTIFACT_MIB},
        "too_many": _("Left out: more than %(n)d files.") % {"n": settings.JOB_ARTIFACT_FILES},
        "no_file": _("Left out: a link, a pipe or a device, no file."),
        "bad_name": _("Left out: its name cannot be shown, or is too long."),
        "changed": _("Left out: it changed while it was collected."),
        "too_slow": _("Left out: collecting took too long."),
        "too_much_to_look_at": _("Not looked through to the end: there is too much in it."),
        "no_room": _("Left out: the node has no room for it."),
        "damaged": _("Left out: it did not arrive as it was on the node."),
    }.get(artifact.left_out)
    return said or _("Left out: it could not be read.")


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
        "scratch": _("It had more in its scratch folder than the node gives."),
        "after": _("A job that it waits for did not succeed."),
        "request": _("Its request was turned down or taken back."),
        "refused": one.word,
        "secret": _("The secret %(word)s is not there any more.") % {"word": one.word},
        **_by_image(one),
        "oom": _("It ran out of memory (137): something in the lease was ended for it."),
        "memory_or_kill": "",
    }.get(one.why, "")
    return str(said)


def _by_image(one: Job | JobAttempt) -> dict[str, str]:
    said = {"word": one.word}
    return {
        "bad_variable": _("A variable cannot be given to a container: %(word)s") % said,
        "image": _("Its image could not be fetched: %(word)s") % said,
        "image_missing": _("Its image was not found: %(word)s") % said,
        "image_denied": _("The registry does not hand its image out: %(word)s") % said,
        "image_digest": _("Its image is not the one with the digest that was named: %(word)s") % said,
        "image_space": _("There is no room for its image on the node: %(word)s") % said,
        "image_slow": _("Its image took too long to fetch: %(word)s") % said,
        "image_unreachable": _("The registry of its image did not answer: %(word)s") % said,
        "no_containers": _("The node of its lease runs no containers. Nothing was charged."),
    }


def progress_text(job: Job) -> str:
    """Return what a waiting job is doing, "" where nobody knows more than that it waits."""
    is_granted = job.request is not None and job.request.state == RequestState.GRANTED
    if job.state != JobState.WAITING or job.why != "pulling" or not is_granted:
        return ""
    return _("Its image is being fetched (%(word)s). Nothing is charged until it is there.") % {
        "word": job.word
    }


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
