"""Measured times of single GPU kernels: what bandwidth and what constant time they show, by GPU and format."""
