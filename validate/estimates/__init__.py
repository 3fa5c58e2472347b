"""Numbers with intervals, from draws of cells."""
