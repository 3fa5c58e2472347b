"""Figures from rows of numbers or from draws of cells."""
