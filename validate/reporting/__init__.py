"""The main job: its record, its pages, its figures."""
