"""The orders of a live turn: each hears of every grant, so what it weighs stays right within the turn."""
