"""Which floor structure measured cells support."""
