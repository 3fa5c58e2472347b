"""Readers of Hugging Face's config.json."""
