"""A new family beside a calibration: does it hold, what would a step take, what to measure next."""
