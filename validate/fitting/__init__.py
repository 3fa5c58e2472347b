"""From a study to draws."""
