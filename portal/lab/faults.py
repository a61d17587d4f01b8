"""What is wrong with a trace, or with changes to a history, as sentences; the replay gives codes and figures."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _

from scheduler.replay.trace_files import TraceFault

SENTENCES: dict[str, Any] = {
    "empty": _("Line %(line)d, column %(column)s: the value is missing."),
    "no_number": _("Line %(line)d, column %(column)s: “%(value)s” is not a number."),
    "out_of_range": _("Line %(line)d, column %(column)s: %(value)s lies outside of %(least)s to %(most)s."),
    "no_column": _("Line 1 names the columns, and has no %(missing)s. Needed are %(needed)s."),
    "no_csv": _("Line %(line)d cannot be read as CSV. Look for quotes that are not closed."),
    "ragged": _("Line %(line)d has more or fewer cells than line 1."),
    "twice": _("Line %(line)d, column seq: %(seq)d stands in an earlier line as well. Number the jobs anew."),
    "too_large": _(
        "Line %(line)d asks for %(gpus)d GPUs; all nodes have %(most)d. Give more nodes, or leave it out."
    ),
    "no_job": _("There is no job in it. Give one line for each."),
    "bad_changes": _("Give an object with demand, nodes and teams."),
    "bad_demand": _("Demand is a number from %(least)s to %(most)s."),
    "bad_nodes": _(
        "Nodes is an object of at most %(most)d names of nodes, each with how many more or fewer."
    ),
    "bad_teams": _("Teams is an object of at most %(most)d names of teams, each with how many more."),
    "bad_count": _("%(name)s: give a whole number from %(least)d to %(most)d."),
    "too_many": _(
        "That makes %(count)d requests; at most %(most)d can be played. Take fewer days, or less demand."
    ),
    "no_node": _("There is no node %(name)s to go by. Choose one that is there."),
    "no_team": _("There is no team %(name)s to go by. Choose one that is there."),
    "too_many_nodes": _("That makes %(nodes)d nodes; at most %(most)d can be played."),
    "too_few_alike": _("Only %(alike)d nodes are like %(name)s, so %(fewer)d cannot be taken away."),
    "no_node_left": _("No node would be left. Leave one at least."),
}


def sentence(fault: TraceFault) -> str:
    """Return what is wrong in the reader's language."""
    return str(SENTENCES[fault.code]) % fault.facts
