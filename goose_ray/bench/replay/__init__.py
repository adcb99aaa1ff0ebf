"""Policies on recorded replies, without the model: figures, tables, plots, and calibrations."""
