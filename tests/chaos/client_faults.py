"""What clients do that is no request of theirs: they dawdle, leave, stay away, come in crowds, or talk nonsense."""

import asyncio
import socket
from collections.abc import Sequence
from random import Random

from chaos import traffic
from chaos.malformed import MALFORMED, Malformed
from chaos.sockets import connection, exchange, post, reset, statuses_of
from chaos.stage import Stage, ViolationError
from chaos.traffic import Ask

__all__ = [
    "flood",
    "half_open",
    "leave_streams",
    "many_connections",
    "pipeline",
    "read_slowly",
    "send_nonsense",
    "write_slowly",
]

_FLOOD = 120
_CONNECTIONS = 300
_STREAM = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "temperature": 0.8, "seed": 5, "stream": True}


async def read_slowly(stage: Stage, random: Random) -> None:
    """A byte a second, then the line goes dead."""
    loop = asyncio.get_running_loop()
    async with connection(stage.port) as client:
        await loop.sock_sendall(client, post("/v1/completions", {"model": stage.model, **_STREAM}))
        for _ in range(random.randint(2, 4)):
            if not await loop.sock_recv(client, 1):
                raise ViolationError("a slow reader was left")
            await asyncio.sleep(1)
        _end(client, random)


async def write_slowly(stage: Stage, random: Random) -> None:
    """Bytes of a request one by one; it ends before the request does."""
    request = post("/v1/completions", {"model": stage.model, **_STREAM})
    loop = asyncio.get_running_loop()
    async with connection(stage.port) as client:
        # at any place: in the first line, in the headers, in the body
        start = random.randrange(len(request) - 30)
        await loop.sock_sendall(client, request[:start])
        for byte in request[start : start + random.randint(5, 25)]:
            await loop.sock_sendall(client, bytes([byte]))
            await asyncio.sleep(0.1)
        _end(client, random)


async def half_open(stage: Stage, random: Random) -> None:
    """Ten clients of whom the server hears nothing more: before, in or after their request."""
    request = post("/v1/completions", {"model": stage.model, **_STREAM})
    loop = asyncio.get_running_loop()

    async def one(seed: int) -> None:
        own = Random(seed)
        async with connection(stage.port) as client:
            await loop.sock_sendall(client, request[: own.choice([0, 1, 60, len(request) - 9, len(request)])])
            await asyncio.sleep(own.uniform(0.2, 2))
            if own.random() < 0.3:
                # it would still read
                client.shutdown(socket.SHUT_WR)
                await asyncio.sleep(0.3)
            _end(client, own)

    await asyncio.gather(*(one(random.randrange(2**32)) for _ in range(10)))


async def leave_streams(stage: Stage, random: Random) -> None:
    """Eight streams, each left somewhere."""

    async def one(seed: int) -> None:
        own = Random(seed)
        async with stage.http() as http:
            body = {"model": stage.model, **_STREAM, "n": own.choice([1, 1, 3]), "seed": seed}
            async with http.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code == 429:
                    return
                num_lines = own.randint(0, 30)
                async for _ in response.aiter_lines():
                    num_lines -= 1
                    if num_lines <= 0:
                        break

    await asyncio.gather(*(one(random.randrange(2**32)) for _ in range(8)))


async def flood(stage: Stage, random: Random) -> None:
    """More than may run and wait: whoever is let in gets the whole answer, the others are told when to come again."""
    short = [ask for ask in traffic.ASKS if ask.body["max_tokens"] < 50]
    asks: Sequence[Ask] = random.choices(short, k=_FLOOD)
    async with stage.http() as http:
        answers = await asyncio.gather(*(traffic.answer_to(http, stage.model, ask) for ask in asks))
    for ask, answer in zip(asks, answers, strict=True):
        if answer.status == 429 and answer.retry_after:
            continue
        stage.expect(ask, answer)
    if not any(answer.status == 429 for answer in answers):
        raise ViolationError("nobody was told to come again")


async def many_connections(stage: Stage, random: Random) -> None:
    """Three hundred that say nothing, or only begin to."""
    clients = [socket.socket() for _ in range(_CONNECTIONS)]
    loop = asyncio.get_running_loop()
    try:
        for client in clients:
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", stage.port))
            if random.random() < 0.5:
                await loop.sock_sendall(client, b"GET /health HTTP/1.1\r\nHost")
        await asyncio.sleep(random.uniform(0.5, 2))
    finally:
        for client in clients:
            _end(client, random)


async def send_nonsense(stage: Stage, random: Random) -> None:
    """Twelve messages that are no HTTP, or no right one: refused or hung up on, never 5xx."""
    sent = random.sample(MALFORMED, k=12)

    async def one(message: Malformed) -> None:
        received = await exchange(stage.port, message.sent, patience_s=3)
        if wrong := [status for status in statuses_of(received) if status >= 500 or status not in message.statuses]:
            raise ViolationError(f"{message.name}: status {wrong}, {received[-200:]!r}")

    await asyncio.gather(*(one(message) for message in sent))


async def pipeline(stage: Stage, random: Random) -> None:
    """Several requests at once on one connection: as many answers, in the same order."""
    words = [f"word {random.randrange(10**6)}" for _ in range(random.randint(2, 6))]
    requests = [
        post("/tokenize", {"model": stage.model, "prompt": word}, *(["Connection: close"] if word is words[-1] else []))
        for word in words
    ]
    received = await exchange(stage.port, b"".join(requests), patience_s=30)
    bodies = [part.partition(b"\r\n\r\n")[2] for part in received.split(b"HTTP/1.1 200 ")[1:]]
    async with stage.http() as http:
        for word, body in zip(words, bodies, strict=True):
            alone = await http.post("/tokenize", json={"model": stage.model, "prompt": word})
            if alone.content != body:
                raise ViolationError(f"pipelined, {word!r} is answered {body!r}, alone {alone.content!r}")


def _end(client: socket.socket, random: Random) -> None:
    """With a farewell or without."""
    if random.random() < 0.5:
        reset(client)
    else:
        client.close()
