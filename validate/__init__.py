"""The judging: what measurements say of the models."""
