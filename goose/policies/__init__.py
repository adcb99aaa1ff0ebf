"""How draft tokens become trees: one file a policy, and a line in `registry`."""
