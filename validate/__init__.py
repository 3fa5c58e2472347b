"""The judging: what measurements say of the models. Importing this package imports nothing else."""

__version__ = "0.1.0"
