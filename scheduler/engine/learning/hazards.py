"""How likely a request is to end in each bin, from those that ended and those still running.

Kaplan-Meier hazards, smoothed towards the team's and then towards everybody's: a class with few ends
behaves like its team, a team with few ends like all.
"""

from __future__ import annotations

import numpy as np

from scheduler.engine.columns import Floats, Ints

LEAST_ENDS = 0.1  # hazard of a bin nobody has reached


def hazards(ended: Floats, at_risk: Floats, team_of: Ints, smoothing: float) -> Floats:
    """Hazard per class and bin.

    ``ended`` and ``at_risk`` count per class (C) and bin; ``team_of`` is the team of each class;
    ``smoothing`` is how many imagined requests the wider group contributes. The last bin ends for sure.
    """
    everybody = (ended.sum(0) + LEAST_ENDS * smoothing) / (at_risk.sum(0) + smoothing)
    teams = int(team_of.max(initial=-1)) + 1
    team_ended, team_risk = np.zeros((teams, ended.shape[1])), np.zeros((teams, ended.shape[1]))
    np.add.at(team_ended, team_of, ended)
    np.add.at(team_risk, team_of, at_risk)
    by_team = (team_ended + smoothing * everybody) / (team_risk + smoothing)
    found: Floats = (ended + smoothing * by_team[team_of]) / (at_risk + smoothing)
    found[:, -1] = 1.0
    return found


def probabilities(hazard: Floats) -> Floats:
    """Probability to end in each bin, from hazards along the last axis."""
    survive = np.cumprod(1.0 - hazard, axis=-1)
    before = np.concatenate([np.ones_like(survive[..., :1]), survive[..., :-1]], axis=-1)
    found: Floats = hazard * before
    return found
