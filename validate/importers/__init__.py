"""Readers of other tools' result files; each turns one format into the measurement schema."""
