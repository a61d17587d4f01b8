"""Published experiments, driven through the engine that decides in the product: ``python -m scheduler.replay``."""
