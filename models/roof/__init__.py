"""What a decode step, or a prefill, costs the GPU."""
