"""From a configuration to a run of `goose bench`, with its progress on standard error."""

from collections.abc import Callable, Sequence

from goose_ray.assembly import choose_device, choose_dtype, load_parts
from goose_ray.bench.engine.decoders import Decoder, EngineDecoder, HttpDecoder
from goose_ray.bench.engine.equivalence import Cell, EquivalenceRun, Setting, samplings
from goose_ray.bench.engine.exact import SAMPLING_SEED, Check, check_greedy, check_sampled, read_cases
from goose_ray.bench.engine.references import (
    EngineReference,
    Reference,
    ReferenceStore,
    TransformersReference,
    weights_id,
)
from goose_ray.bench.engine.tau import BenchmarkTau, TauRun
from goose_ray.bench.progress import progress
from goose_ray.bench.prompts import PromptFile
from goose_ray.config import GooseConfig
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import ConfigError
from goose_ray.models.loader import resolve
from goose_ray.models.tokenizer import load_tokenizer

__all__ = ["prepare_tau", "run_equivalence", "run_exact", "run_tau"]


def prepare_tau(
    config: GooseConfig, *, chat: bool, max_tokens: int, concurrency: int, against_transformers: bool
) -> TauRun:
    """Loads the model. Raises ConfigError or ModelLoadError."""
    parts = load_parts(config)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    reference: Reference
    if against_transformers:
        reference = TransformersReference(parts.path, dtype=dtype, device=device)
    else:
        reference = EngineReference(parts, config.engine, concurrency=concurrency)
    return TauRun(
        parts=parts,
        engine=config.engine,
        references=ReferenceStore(reference, weights=weights_id(parts.path), dtype=dtype),
        chat=chat,
        max_tokens=max_tokens,
        concurrency=concurrency,
    )


def run_tau(run: TauRun, prompts: PromptFile) -> BenchmarkTau:
    """Measures one file; half of the progress is the replies, half the references."""
    total = 2 * sum(dialogue.num_requests for dialogue in prompts.dialogues)
    with progress(prompts.name, unit="reply", total=total) as on_reply:
        return run.measure(prompts, on_reply)


def run_exact(
    config: GooseConfig,
    files: Sequence[PromptFile],
    *,
    base_url: str | None,
    api_key: str | None,
    policies: Sequence[str],
    concurrencies: Sequence[int],
    max_tokens: int,
    max_prompt_tokens: int,
    chat: bool,
    temperature: float,
) -> list[Check]:
    """Greedy checks, and sampled ones if the temperature is above 0.

    The model is loaded here for transformers' references, and once more for the engine if there is no `base_url`.
    """
    path = resolve(config.model)
    cases = read_cases(files, load_tokenizer(path), chat=chat, limit=max_prompt_tokens)
    decoder: Decoder
    if base_url is None:
        decoder = EngineDecoder(load_parts(config), config.engine)
    else:
        decoder = HttpDecoder(base_url, api_key=api_key)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    reference = TransformersReference(path, dtype=dtype, device=device)
    with progress("exact", unit="reply") as on_reply:
        checks = check_greedy(
            decoder,
            cases,
            ReferenceStore(reference, weights=weights_id(path), dtype=dtype),
            reference,
            policies=policies,
            concurrencies=concurrencies,
            max_tokens=max_tokens,
            on_reply=on_reply,
        )
        if temperature > 0:
            sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=SAMPLING_SEED)
            checks += check_sampled(
                decoder, cases, sampling, policies=policies, concurrencies=concurrencies, on_reply=on_reply
            )
    return checks


def run_equivalence(
    config: GooseConfig,
    files: Sequence[PromptFile],
    *,
    policies: Sequence[str],
    names: Sequence[str],
    concurrencies: Sequence[int],
    short_of_room: int,
    budget: int,
    max_tokens: int,
    max_prompt_tokens: int,
    chat: bool,
    on_cell: Callable[[Cell], object],
) -> list[Cell]:
    """The equivalence matrix of the ways to sample that are named, of all if none is.

    `short_of_room` requests at a time are preempted now and then; 0: no such runs. Raises ConfigError.
    """
    kinds = samplings(max_tokens)
    if unknown := set(names) - set(kinds):
        raise ConfigError(f"sampling must be one of {', '.join(kinds)}, not {', '.join(sorted(unknown))}")
    kinds = {name: kinds[name] for name in names} or kinds
    # Nothing is learned of durations: with an automatic budget a busy machine would draft little.
    fixed = config.engine.model_copy(update={"budget": budget})
    parts = load_parts(config.model_copy(update={"engine": fixed}))
    cases = read_cases(files, parts.tokenizer, chat=chat, limit=max_prompt_tokens)
    settings = [Setting(policy, concurrency=short_of_room, short_of_room=True) for policy in policies if short_of_room]
    # Most at a time first: the slowest run comes last.
    settings += [Setting(policy, number) for number in sorted(concurrencies, reverse=True) for policy in policies]
    total = (len(settings) + 1) * len(cases) * len(kinds)
    with progress("equivalence", unit="reply", total=total) as on_answer:
        run = EquivalenceRun(parts, cases, kinds, budget, on_answer=on_answer)
        return run.cells(settings, on_cell)
