"""The real module of a config, without memory, divided as ranks divide it: do the parts make up the whole?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig

from goose_ray.errors import ModelLoadError
from goose_ray.models.shard_division import Division, IndivisibleError, TensorSlice
from goose_ray.models.shard_source import build_skeleton
from goose_ray.plan.architecture import Architecture

__all__ = ["DryRun", "dry_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    num_ranks: int
    # tensors that were checked, each on all ranks; the output embeddings are one
    num_tensors: int
    num_divided: int
    # of the model, and of each rank, in parameters
    whole: int
    of_ranks: tuple[int, ...]


def dry_run(config: Mapping[str, Any], num_ranks: int) -> DryRun:
    """Raises ModelLoadError naming a tensor whose parts leave out or repeat something, or that is counted otherwise by
    `goose_ray.plan.architecture`.
    """
    model = build_skeleton(AutoConfig.for_model(**config), torch.bfloat16)
    try:
        division = Division(model)
    except IndivisibleError as error:
        raise ModelLoadError(f"{type(model).__name__} cannot be divided by its names: {error}") from error
    parts = [division.slices(rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    head = model.get_output_embeddings().weight
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter is not head}
    if model.config.tie_word_embeddings:
        parameters = dict(model.named_parameters())
    if parameters.keys() != parts[0].keys():
        raise ModelLoadError(f"not divided: {sorted(parameters.keys() ^ parts[0].keys())}")
    num_divided = 0
    for name, parameter in parameters.items():
        of_ranks = [part[name] for part in parts]
        _check(name, tuple(parameter.shape), of_ranks)
        num_divided += of_ranks[0].dim is not None
    shares = [Architecture.from_config(config).share(rank, num_ranks) for rank in range(num_ranks)]
    for rank, (part, share) in enumerate(zip(parts, shares, strict=True)):
        counted = sum(torch.Size(piece.shape).numel() for piece in part.values())
        if counted != share.layers + share.embeddings:
            raise ModelLoadError(
                f"rank {rank} of {num_ranks} holds {counted} parameters, planned were {share.layers + share.embeddings}"
            )
    if sum(share.head for share in shares) != head.numel():
        raise ModelLoadError(f"the ranks hold {sum(share.head for share in shares)} of {head.numel()} output weights")
    return DryRun(
        num_ranks=num_ranks,
        num_tensors=len(parameters) + 1,
        num_divided=num_divided + 1,
        whole=sum(parameter.numel() for parameter in model.parameters()),
        of_ranks=tuple(share.parameters for share in shares),
    )


def _check(name: str, whole: tuple[int, ...], of_ranks: list[TensorSlice]) -> None:
    end = 0
    for rank, part in enumerate(of_ranks):
        if part.whole != whole or part.dim != of_ranks[0].dim:
            raise ModelLoadError(f"{name}: rank {rank} has a part of {part.whole} instead of {whole}")
        if part.dim is None:
            continue
        if part.start != end or part.stop <= part.start:
            raise ModelLoadError(f"{name}: rank {rank} has {part.start} to {part.stop}, what is before ends at {end}")
        end = part.stop
    if of_ranks[0].dim is not None and end != whole[of_ranks[0].dim]:
        raise ModelLoadError(f"{name}: the ranks together have {end} of {whole[of_ranks[0].dim]}")
