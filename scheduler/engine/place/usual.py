"""What requests look like where nobody has asked yet: the forms of a public trace, coarsely.

Counted in the pod list of alibaba/clusterdata, cluster-trace-gpu-v2023 (Apache-2.0), 8,152 requests: the
commonest sizes by themselves, requests for several boards by number of boards with their median CPU.
"""

from __future__ import annotations

from scheduler.engine.place.statistics import Form

USUAL: tuple[tuple[Form, int], ...] = (
    (Form(6000, 0, 50, 1, ""), 7),
    (Form(4000, 0, 100, 1, ""), 24),
    (Form(1000, 0, 150, 1, ""), 1),
    (Form(4000, 0, 160, 1, ""), 74),
    (Form(4000, 0, 220, 1, ""), 62),
    (Form(4000, 0, 230, 1, ""), 140),
    (Form(4152, 0, 250, 1, ""), 4),
    (Form(1000, 0, 300, 1, ""), 1),
    (Form(4000, 0, 320, 1, ""), 328),
    (Form(4000, 0, 350, 1, ""), 13),
    (Form(4152, 0, 370, 1, ""), 47),
    (Form(8000, 0, 450, 1, ""), 2),
    (Form(6000, 0, 460, 1, ""), 128),
    (Form(8000, 0, 470, 1, ""), 250),
    (Form(11908, 0, 470, 1, ""), 250),
    (Form(11908, 0, 470, 1, ""), 250),
    (Form(4000, 0, 500, 1, ""), 19),
    (Form(4152, 0, 550, 1, ""), 72),
    (Form(3152, 0, 590, 1, ""), 75),
    (Form(11908, 0, 650, 1, ""), 253),
    (Form(3152, 0, 810, 1, ""), 359),
    (Form(3152, 0, 810, 1, ""), 359),
    (Form(3152, 0, 810, 1, ""), 359),
    (Form(4000, 0, 1000, 1, ""), 1303),
    (Form(11400, 0, 1000, 1, ""), 1303),
    (Form(15700, 0, 1000, 1, ""), 1303),
    (Form(16200, 0, 1000, 2, ""), 16),
    (Form(32200, 0, 1000, 4, ""), 15),
    (Form(88000, 0, 1000, 8, ""), 44),
)

# Prices of the sizes, solved once (``prices.solve``) and held against it by a test.
USUAL_PRICES: tuple[tuple[int, float], ...] = (
    (50, 0.0),
    (100, 0.0),
    (150, 0.0),
    (160, 0.0),
    (220, 0.08333333333333326),
    (230, 0.25),
    (250, 0.25),
    (300, 0.25),
    (320, 0.3333333333333333),
    (350, 0.33333333333333326),
    (370, 0.33333333333333326),
    (450, 0.33333333333333326),
    (460, 0.5),
    (470, 0.5),
    (500, 0.5),
    (550, 0.6666666666666667),
    (590, 0.6666666666666667),
    (650, 0.6666666666666667),
    (810, 1.0),
    (1000, 1.0),
)
