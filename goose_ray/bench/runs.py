"""From a configuration to a run of `goose bench`, with a progress bar on standard error."""

from collections.abc import Sequence

from tqdm import tqdm

from goose_ray.assembly import choose_device, choose_dtype, load_parts
from goose_ray.bench.decoders import Decoder, EngineDecoder, HttpDecoder
from goose_ray.bench.exact import Check, check_greedy, check_sampled, read_cases
from goose_ray.bench.prompts import PromptFile
from goose_ray.bench.references import EngineReference, Reference, ReferenceStore, TransformersReference, weights_id
from goose_ray.bench.tau import BenchmarkTau, TauRun
from goose_ray.config import GooseConfig
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.models.loader import resolve
from goose_ray.models.tokenizer import load_tokenizer

__all__ = ["prepare_tau", "run_exact", "with_progress"]

# Any: what counts is that every policy draws from the same one.
_SEED = 20240229


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


def with_progress(run: TauRun, prompts: PromptFile, *, shown: bool) -> BenchmarkTau:
    """Measures one file; half of the bar is the replies, half the references."""
    total = 2 * sum(dialogue.num_requests for dialogue in prompts.dialogues)
    with tqdm(total=total, desc=prompts.name, unit="reply", disable=not shown) as bar:
        return run.measure(prompts, bar.update)


def run_exact(
    config: GooseConfig,
    files: Sequence[PromptFile],
    *,
    base_url: str | None,
    policies: Sequence[str],
    concurrencies: Sequence[int],
    max_tokens: int,
    max_prompt_tokens: int,
    chat: bool,
    temperature: float,
    shown: bool,
) -> list[Check]:
    """Greedy checks, and sampled ones if the temperature is above 0.

    The model is loaded here for transformers' references, and once more for the engine if there is no `base_url`.
    """
    path = resolve(config.model)
    cases = read_cases(files, load_tokenizer(path), chat=chat, limit=max_prompt_tokens)
    decoder: Decoder = EngineDecoder(load_parts(config), config.engine) if base_url is None else HttpDecoder(base_url)
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    reference = TransformersReference(path, dtype=dtype, device=device)
    with tqdm(desc="exact", unit="reply", disable=not shown) as bar:
        checks = check_greedy(
            decoder,
            cases,
            ReferenceStore(reference, weights=weights_id(path), dtype=dtype),
            reference,
            policies=policies,
            concurrencies=concurrencies,
            max_tokens=max_tokens,
            on_reply=bar.update,
        )
        if temperature > 0:
            sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=_SEED)
            checks += check_sampled(
                decoder, cases, sampling, policies=policies, concurrencies=concurrencies, on_reply=bar.update
            )
    return checks
