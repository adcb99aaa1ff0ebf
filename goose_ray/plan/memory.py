"""What a rank needs of its GPU's memory: weights, KV, activations, tables, and what the libraries take.

Weights and KV are exact. Activations are those of the largest step, counted tensor by tensor; tables are those that
attention masks are read from (`goose_ray.runner.flex_tables`). What CUDA, NCCL and fragments take is an allowance.
"""

from dataclasses import dataclass

from goose_ray.plan.architecture import Architecture, RankShare

__all__ = ["RUNTIME_BYTES", "RankMemory", "kv_bytes_per_token", "rank_memory"]

# An allowance, not a measurement: CUDA context and kernels 0.6 GiB, NCCL's channels 0.4, the allocator's fragments 1.
RUNTIME_BYTES = 2 << 30
# Rows whose logits are computed at once: `goose_ray.runner.verification.ROWS_PER_CHUNK`.
_LOGIT_ROWS = 128
_BLOCK_SLOTS, _WORD_BITS, _TREE_ROWS = 128, 32, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on the GPU of one rank."""

    weights: int
    kv: int
    activations: int
    tables: int
    runtime: int
    kv_per_token: int
    # of the GPU
    available: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations + self.tables + self.runtime

    @property
    def missing(self) -> int:
        """Zero if it fits."""
        return max(0, self.total - self.available)

    @property
    def kv_tokens_that_fit(self) -> int:
        """Most `kv_cache_tokens`, none if not even the rest fits; what more slots add to the tables is left out."""
        return max(0, (self.available - self.total + self.kv) // self.kv_per_token)


def kv_bytes_per_token(of_model: Architecture, share: RankShare, itemsize: int) -> int:
    return of_model.num_hidden_layers * 2 * share.kv_heads * of_model.head_dim * itemsize


def rank_memory(
    of_model: Architecture,
    *,
    num_ranks: int,
    itemsize: int,
    kv_cache_tokens: int,
    max_batch_rows: int,
    max_sequences: int,
    available: int,
) -> RankMemory:
    """Of rank 0, which holds most. Raises ConfigError if the model cannot be divided so."""
    share = of_model.share(0, num_ranks)
    per_token = kv_bytes_per_token(of_model, share, itemsize)
    return RankMemory(
        weights=share.parameters * itemsize,
        # one slot more, for padding rows
        kv=(kv_cache_tokens + 1) * per_token,
        activations=_activations(of_model, share, num_ranks, itemsize, max_batch_rows),
        tables=_tables(kv_cache_tokens + 1, max_batch_rows, max_sequences),
        runtime=RUNTIME_BYTES,
        kv_per_token=per_token,
        available=available,
    )


def _activations(of_model: Architecture, share: RankShare, num_ranks: int, itemsize: int, rows: int) -> int:
    """The larger of a layer's and the logits': residual, normed and summed states, then the widest part of a layer."""
    inner = -(-of_model.intermediate_size // num_ranks)
    # gate, up and their product; or queries, keys, values, rotated queries and keys, attended values
    widest = max(3 * inner, of_model.head_dim * (3 * share.query_heads + 3 * share.kv_heads))
    layer = rows * itemsize * (3 * of_model.hidden_size + widest)
    # this rank's logits in 16 bits and float32, a masked copy, and rank 0's rows of the whole vocabulary
    width = -(-of_model.vocab_size // num_ranks)
    logits = min(rows, _LOGIT_ROWS) * (width * (itemsize + 2 * 4) + of_model.vocab_size * 4)
    return max(layer, logits + rows * itemsize * of_model.hidden_size)


def _tables(slots: int, rows: int, sequences: int) -> int:
    """One set of tables: of int32 but for three of int64."""
    # a tile a sequence at least, each with its blocks of the pool
    tiles = max(sequences, -(-rows // _TREE_ROWS))
    places = tiles * _TREE_ROWS
    per_place = 8 + 4 * (4 + -(-rows // _WORD_BITS))
    per_slot = 4 * (2 + -(-tiles // _WORD_BITS))
    return places * per_place + slots * per_slot + rows * 2 * 8 + 2 * tiles * 4 * (1 + -(-slots // _BLOCK_SLOTS))
