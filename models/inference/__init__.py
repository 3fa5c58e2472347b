"""Priors, the one likelihood and every way to fit it."""
