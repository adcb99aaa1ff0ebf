"""Fills what a server keeps up to a limit, so that what grows afterwards is nobody's cache. Knows what the limits are,
and nothing of how memory is measured.
"""

from random import Random

import httpx

__all__ = ["fill"]

# of a forward: engine.max_batch_rows
_MOST_ROWS = 512
# Rows that `TransitionTable` keeps of pairs of tokens, and as many of tokens of salted requests.
_PAIRS = 65536
# Into how many places of its tables `anisotropic` has to write, at random, until hardly a page of them is untouched.
_PLACES = 20_000
# of 1024 that a sequence may have
_LONGEST = 1000
_TOKENS = range(1000, 49_000)


async def fill(http: httpx.AsyncClient, model: str) -> None:
    """One request at a time: of more, prompts are not harvested. `model` has at least 49000 tokens and a context of
    1024.
    """
    random = Random(0)

    async def send(num_rows: int, **more: object) -> None:
        prompt = random.sample(_TOKENS, k=num_rows)
        answer = await http.post("/v1/completions", json={"model": model, "prompt": prompt, "max_tokens": 1, **more})
        assert answer.status_code == 200, answer.text

    # every number of rows for which oneDNN keeps a product; the head's products too where the rows may be a tree's
    for num_rows in (*range(1, 65), *range(72, _MOST_ROWS + 1, 8)):
        await send(num_rows, **({"echo": True, "logprobs": 1} if num_rows <= 128 else {}))
    # a salt of their own each: no prefix is known, and each row of a token is another one
    for policy, num_rows in (("recycling", _PAIRS), ("anisotropic", _PLACES)):
        for number in range(-(-num_rows // _LONGEST)):
            await send(_LONGEST, cache_salt=f"{policy} {number}", goose={"policy": policy})
        # what is kept of requests without a salt, by token
        await send(_LONGEST, goose={"policy": policy})
