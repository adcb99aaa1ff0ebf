"""Where draft tokens come from: one file a source, and a line in `registry`."""
