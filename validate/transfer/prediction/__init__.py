"""Step times with intervals, from saved draws."""
