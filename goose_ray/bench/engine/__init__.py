"""Prompt files through the real engine: what is accepted, whether it is exact, and recordings of it."""
