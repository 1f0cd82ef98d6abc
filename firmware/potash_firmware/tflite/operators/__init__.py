"""The operators that the delegate takes over: one module, and one row of this table, for each.

An operator says why it cannot take a node (`supports`), makes once what does not depend on the
activations (`plan`), and computes outputs from inputs on the VTA as often as asked (`Plan.run`).
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from potash_device.vta.config import Config
from potash_firmware.tflite.capi import Array, BuiltinOperator, Node
from potash_firmware.tflite.operators import add
from potash_firmware.vta_runtime import Runtime


class Plan(Protocol):
    """A node made ready to run."""

    def run(
        self, runtime: Runtime, inputs: Sequence[Array | None], outputs: Sequence[Array]
    ) -> None:
        """Fill `outputs` from `inputs`: arrays of the tensors' shapes, None for one left out."""


class Operator(NamedTuple):
    """How one builtin operator runs on a VTA of a given configuration."""

    supports: Callable[[Node, Config], str | None]
    plan: Callable[[Node, Config], Plan]


OPERATORS: Mapping[int, Operator] = MappingProxyType(
    {
        BuiltinOperator.ADD: Operator(add.supports, add.plan),
    }
)


def refusal(node: Node, config: Config) -> str | None:
    """Why the VTA does not run this node; None when it does."""
    operator = OPERATORS.get(node.operator)
    if operator is None:
        return "the VTA has no kernel for this operator"
    return operator.supports(node, config)
