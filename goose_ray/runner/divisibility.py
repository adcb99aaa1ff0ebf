"""Whether a model's attention can be divided among ranks, from its config alone."""

from transformers import PretrainedConfig

from goose_ray.errors import ConfigError

__all__ = ["check_divisible"]


def check_divisible(of_model: PretrainedConfig, num_ranks: int) -> None:
    """Raises ConfigError if there are fewer key-value heads than ranks.

    A rank gets whole key-value heads, each with the query heads that share it; some may get one more than others.
    """
    config = of_model.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if kv_heads is not None and kv_heads < num_ranks:
        raise ConfigError(
            f"tensor_parallel_size must be at most {kv_heads}, the model's number of key-value heads, not {num_ranks}: "
            "a rank needs at least one of them"
        )
