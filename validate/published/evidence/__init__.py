"""How probable the printed figures are under each floor structure."""
