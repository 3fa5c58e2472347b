"""The one published study: its printed figures and what they say of cells."""
