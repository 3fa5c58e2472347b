"""The report's sections, from numbers to sentences."""
