"""Grids that print the published figures."""
