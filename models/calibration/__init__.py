"""A saved calibration as plain arrays."""
