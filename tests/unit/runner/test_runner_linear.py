"""Packed linear layers compute what `nn.Linear` does, and replace it where they may and nowhere else."""

import pytest
import torch
from tiny_models import tiny_model
from torch import nn

from goose_ray.runner.linear import PackedLinear, pack_linears


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 16, 65])
def test_equals_a_linear_layer(num_rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(96, 160, bias=bias)
    inputs = torch.randn(1, num_rows, 96)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(inputs), linear(inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_rows", [65, 66, 71, 72, 100, 129])
def test_rows_of_long_prompts_are_rounded_up_and_computed_to_the_last_bit(
    num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    packed, inputs = PackedLinear(nn.Linear(96, 160)), torch.randn(1, num_rows, 96)
    multiplied: list[int] = []
    product = PackedLinear._product

    def counted(layer: PackedLinear, rows: torch.Tensor) -> torch.Tensor:
        multiplied.append(rows.numel() // 96)
        return product(layer, rows)

    with torch.inference_mode():
        expected = packed._product(inputs)
        monkeypatch.setattr(PackedLinear, "_product", counted)
        found = packed(inputs)
    assert multiplied == [-(-num_rows // 8) * 8]
    assert found.shape == (1, num_rows, 160)
    assert torch.equal(found, expected)


def test_rows_that_are_strided_views() -> None:
    torch.manual_seed(0)
    linear, inputs = nn.Linear(32, 48), torch.randn(9, 64)[::3, ::2]
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(linear)(inputs), linear(inputs), rtol=1e-5, atol=1e-5)


def test_a_model_keeps_its_embeddings_when_its_tied_head_is_packed() -> None:
    model = tiny_model("llama", tie_word_embeddings=True).eval()
    embeddings = model.get_input_embeddings().weight
    before = embeddings.clone()
    num_linears = sum(type(module) is nn.Linear for module in model.modules())
    tokens = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        expected = model(tokens).logits
        assert pack_linears(model) == num_linears > 1
        torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-5, atol=1e-5)
    assert isinstance(model.get_output_embeddings(), PackedLinear)
    assert model.get_input_embeddings().weight is embeddings
    torch.testing.assert_close(embeddings, before, rtol=0, atol=0)


def test_other_precisions_and_subclasses_stay_as_they_are() -> None:
    class Sharded(nn.Linear):
        pass

    model = nn.ModuleDict({"coarse": nn.Linear(8, 8, dtype=torch.bfloat16), "sharded": Sharded(8, 8)})
    assert pack_linears(model) == 0
    assert type(model["coarse"]) is nn.Linear
    assert type(model["sharded"]) is Sharded
