"""The life of a replica that never came up."""

import asyncio

import pytest

from goose_ray.replica import GooseServer


# the interpreter calls it once more, as it does for every object
@pytest.mark.filterwarnings("ignore:coroutine 'GooseServer.__del__' was never awaited")
def test_there_is_nothing_to_take_down_of_one_that_failed_to_start() -> None:
    server = GooseServer.__new__(GooseServer)
    asyncio.run(server.__del__())
