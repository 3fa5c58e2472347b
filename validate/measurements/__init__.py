"""Measured steps, and what of a file can be used."""
