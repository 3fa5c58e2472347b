"""H1, H2 and H3, and what they rest on."""
