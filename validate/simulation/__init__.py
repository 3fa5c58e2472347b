"""Simulated studies of known truth: how often is each verdict wrong."""
