"""Which data, which anchor, which margins."""
