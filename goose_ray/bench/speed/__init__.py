"""Tokens per second and the cost of forwards, this engine's and others', interleaved in one run."""
