"""Measured times of single GPU kernels: what bandwidth and what constant time they show, GPU by GPU and format by format."""
