"""Published experiments, driven through the engine that decides in the product: ``python -m scheduler.replay``."""

import os

# As where the product trains: the tables are so small that threads mostly wait for each other, and they wait busily.
os.environ.setdefault("OMP_NUM_THREADS", "1")
