"""The equivalence matrix of `goose bench equivalence` in small: the embedded model, every way to sample, two policies.

`make equivalence PROMPTS=…` runs the whole.
"""

from goose_ray.assembly import ReplicaParts
from goose_ray.bench.engine.decoders import Case
from goose_ray.bench.engine.equivalence import EquivalenceRun, Setting, samplings
from goose_ray.bench.engine.equivalence_report import equivalence_json, is_whole
from goose_ray.bench.prompts import Conversation, encode

_MAX_TOKENS = 16
_REQUESTS: tuple[str | Conversation, ...] = (
    Conversation(({"role": "user", "content": "Say in JSON how sure you are that ducks are birds."},)),
    "Once upon a time, in a small village by the sea, there lived",
)
_SETTINGS = (Setting("anisotropic", 10, short_of_room=True), Setting("goose", 8))


def test_every_way_to_sample_alone_together_and_preempted(parts: ReplicaParts) -> None:
    cases = [Case(str(i), one, encode(one, parts.tokenizer, 512)) for i, one in enumerate(_REQUESTS)]
    kinds = samplings(_MAX_TOKENS)
    cells = EquivalenceRun(parts, cases, kinds, budget=16).cells(_SETTINGS)
    assert is_whole(cells), equivalence_json(cells)
    assert len(cells) == len(kinds) * len(_SETTINGS)
