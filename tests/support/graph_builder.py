"""Models for tests: the builder of models with the operators that no network of Potash has."""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from potash.models import builder
from potash.models.builder import (
    Code,
    FusedActivation,
    Operator,
    Padding,
    Steps,
    Tensor,
    options_of,
)
from potash.models.windows import Pair

__all__ = ["FusedActivation", "GraphBuilder", "Padding", "Tensor"]


class GraphBuilder(builder.GraphBuilder):
    """A model with one graph; quantised operators have the `scale` and `zero_point` of their
    output."""

    def sub(
        self,
        left: Tensor,
        right: Tensor,
        scale: float | None = None,
        zero_point: int = 0,
        *,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Tensor:
        """SUB: left - right."""
        options = options_of(schema.SubOptionsT, potScaleInt16=False)
        return self._binary(Code.SUB, left, right, options, activation, scale, zero_point)

    def mul(
        self,
        left: Tensor,
        right: Tensor,
        scale: float | None = None,
        zero_point: int = 0,
        *,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Tensor:
        """MUL: left * right."""
        options = schema.MulOptionsT()
        return self._binary(Code.MUL, left, right, options, activation, scale, zero_point)

    def minimum(self, left: Tensor, right: Tensor) -> Tensor:
        """MINIMUM of two tensors whose scales agree."""
        return self._extreme(Code.MINIMUM, left, right)

    def maximum(self, left: Tensor, right: Tensor) -> Tensor:
        """MAXIMUM of two tensors whose scales agree."""
        return self._extreme(Code.MAXIMUM, left, right)

    def average_pool2d(self, x: Tensor, size: Pair, **steps: Unpack[Steps]) -> Tensor:
        """AVERAGE_POOL_2D, padding left out of the averages; else as `max_pool2d`."""
        return self._pool(Code.AVERAGE_POOL_2D, x, size, steps)

    def relu(self, x: Tensor, scale: float | None = None, zero_point: int = 0) -> Tensor:
        """RELU, as an operator of its own."""
        return self._unary(Code.RELU, x, scale, zero_point)

    def relu6(self, x: Tensor, scale: float | None = None, zero_point: int = 0) -> Tensor:
        """RELU6, as an operator of its own."""
        return self._unary(Code.RELU6, x, scale, zero_point)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """RESHAPE; one extent may be -1."""
        known = -math.prod(shape)
        whole = [math.prod(x.shape) // known if extent == -1 else extent for extent in shape]
        new = np.array(shape, np.int32)
        options = options_of(schema.ReshapeOptionsT, newShape=new)
        return self._move(Code.RESHAPE, (x, self.constant(new)), whole, options, version=1)

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        """TRANSPOSE: axis i of the output is axis `permutation[i]` of `x`."""
        operands = x, self.constant(np.array(permutation, np.int32))
        shape = [x.shape[axis] for axis in permutation]
        return self._move(Code.TRANSPOSE, operands, shape, schema.TransposeOptionsT())

    def concatenation(
        self,
        tensors: Sequence[Tensor],
        axis: int = -1,
        *,
        activation: FusedActivation = FusedActivation.NONE,
    ) -> Tensor:
        """CONCATENATION along `axis` of tensors whose scales agree."""
        options = options_of(
            schema.ConcatenationOptionsT, axis=axis, fusedActivationFunction=activation
        )
        shape = list(tensors[0].shape)
        shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
        return self._move(Code.CONCATENATION, tuple(tensors), shape, options)

    def _binary(
        self,
        code: Operator,
        left: Tensor,
        right: Tensor,
        options: Any,
        activation: FusedActivation,
        scale: float | None,
        zero_point: int,
    ) -> Tensor:
        options.fusedActivationFunction = activation
        shape = np.broadcast_shapes(left.shape, right.shape)
        return self._add(code, (left, right), shape, options, scale, zero_point, version=2)

    def _extreme(self, code: Operator, left: Tensor, right: Tensor) -> Tensor:
        shape = np.broadcast_shapes(left.shape, right.shape)
        return self._move(code, (left, right), shape, schema.MaximumMinimumOptionsT())

    def _unary(self, code: Operator, x: Tensor, scale: float | None, zero_point: int) -> Tensor:
        return self._add(code, (x,), x.shape, None, scale, zero_point, version=2)
