"""Linear layers for products of few rows, on the CPU: weights packed once into the layout that oneDNN multiplies in.

A tree has few rows, so a linear layer costs what reading its weights costs, if the product is made for it; torch's
default (MKL's sgemm over the weights as they lie) takes twice that from two rows on. The packed products are those
that torch's own compiler uses when it freezes a model. Knows nothing of the model around the layers.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

__all__ = ["PackedLinear", "SummedLinear", "linear_of", "pack_linears", "packed"]

# The layout that oneDNN picks for this many rows is within a few per cent of the best at all others, unlike that for
# one row; and with it a row's product hardly depends on the rows beside it.
_PACKED_FOR_ROWS = 64
# oneDNN compiles a product for every number of rows it meets and keeps it, 0.6 MiB each. Trees are smaller
# than this, and a row more would cost them something; prompts come in any size, and are rounded up.
_MANY_ROWS, _ROWS_MULTIPLE = 64, 8


class PackedLinear(nn.Module):
    """A float32 `nn.Linear` on the CPU for inference. Holds no dense copy of the weights: they cannot be changed."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _PACKED_FOR_ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach()

    @property
    def weight(self) -> torch.Tensor:
        """[out_features, in_features], unpacked for each who asks: some routers of experts multiply by hand."""
        return self._packed.to_dense()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]"""
        num_rows = inputs.numel() // self.in_features
        if num_rows <= _MANY_ROWS or num_rows % _ROWS_MULTIPLE == 0:
            return self._product(inputs)
        rows = functional.pad(inputs.reshape(num_rows, self.in_features), (0, 0, 0, -num_rows % _ROWS_MULTIPLE))
        return self._product(rows)[:num_rows].view(*inputs.shape[:-1], self.out_features)

    def _product(self, inputs: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._packed, self._bias, "none", [], "")
        return product

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self._bias is not None}"


class SummedLinear(nn.Module):
    """A linear layer of which each rank has some of the inputs: their products summed by `reduce`, then the bias."""

    def __init__(
        self, product: nn.Module, bias: torch.Tensor | None, reduce: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self._product, self._bias, self._reduce = product, bias, reduce

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[..., this rank's in_features] -> [..., out_features], the same on all ranks"""
        total = self._reduce(self._product(inputs))
        return total if self._bias is None else total + self._bias


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear layer of these very tensors: weight [out_features, in_features], bias [out_features]."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def packed(layer: nn.Module) -> nn.Module:
    """The layer packed, or itself unless it is a float32 linear layer on the CPU and oneDNN is there."""
    # Subclasses (quantised, sharded) multiply in their own way.
    if not torch._C._has_mkldnn or type(layer) is not nn.Linear:
        return layer
    if layer.weight.device.type != "cpu" or layer.weight.dtype != torch.float32:
        return layer
    return PackedLinear(layer)


def pack_linears(model: nn.Module) -> int:
    """Replaces the model's float32 CPU linear layers in place, and returns how many.

    None where oneDNN is missing. Weights that another module shares (tied embeddings) stay there as they are.
    """
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            replacement = packed(child)
            if replacement is not child:
                setattr(parent, name, replacement)
                num_packed += 1
    return num_packed
