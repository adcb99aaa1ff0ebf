"""Whose requests end when a caller dies, and when callers are looked at."""

import asyncio

from goose_ray.api.callers import Callers


class World:
    """Callers that die when told to; counts how often they are looked at."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.looks = 0
        self.looked = asyncio.Event()
        self.ended: list[str] = []
        self.callers = Callers(self._is_dead, self.ended.append, period_s=0.0)

    async def _is_dead(self, caller: str) -> bool:
        self.looks += 1
        self.looked.set()
        return caller in self.dead

    async def look_again(self, times: int = 2) -> None:
        for _ in range(times):
            self.looked.clear()
            await self.looked.wait()


def test_the_requests_of_a_dead_caller_are_ended() -> None:
    async def scenario() -> None:
        world = World()
        with (
            world.callers.request("a", "r1"),
            world.callers.request("a", "r2"),
            world.callers.request("b", "r3"),
        ):
            await world.look_again()
            assert world.ended == []
            world.dead.add("a")
            await world.look_again(4)
            assert set(world.ended) == {"r1", "r2"}
        await world.callers.stop()

    asyncio.run(scenario())


def test_a_request_that_comes_after_its_caller_died_is_ended() -> None:
    async def scenario() -> None:
        world = World()
        world.dead.add("a")
        with world.callers.request("a", "r1"):
            await world.look_again()
            with world.callers.request("a", "r2"):
                await world.look_again()
                assert "r2" in world.ended
        await world.callers.stop()

    asyncio.run(scenario())


def test_nobody_is_looked_at_without_a_request() -> None:
    async def scenario() -> None:
        world = World()
        for _ in range(2):
            with world.callers.request("a", "r"):
                await world.look_again(1)
            (watch,) = (task for task in asyncio.all_tasks() if task is not asyncio.current_task())
            await watch
            looks = world.looks
            await asyncio.sleep(0)
            assert world.looks == looks
        assert world.ended == []

    asyncio.run(scenario())
