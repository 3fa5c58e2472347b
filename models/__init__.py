"""The mathematics: what one decode step should cost. Knows nothing of `validate`."""
