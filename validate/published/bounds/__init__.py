"""What the printed figures exclude, without priors."""
