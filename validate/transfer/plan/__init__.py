"""Which cells to measure next."""
