"""The policy `anisotropic` from the inside: one model of the next token over all that is known for free.

`texts` and `occurrences` remember what was said and find it again, `successors` what the target found likely,
`candidates` and `model` make one probability distribution of both, `tree` takes the likeliest paths, `budget` decides
how many, and `drafter` keeps it all for the requests of a replica. Importing the compiled parts takes a second where
numba is installed, so only the policy does, when it is first used.
"""
