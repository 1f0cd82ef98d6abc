"""ADD of two int8 tensors.

Source: `tflite/kernels/add.cc`, `internal/reference/add.h`.
"""

from collections.abc import Sequence

from potash_firmware.tflite.capi import Node
from potash_firmware.tflite.operators import addition
from potash_firmware.tflite.packing import Layout
from potash_firmware.tflite.plans import Plan, Settings


def supports(node: Node, settings: Settings) -> str | None:
    """Why the VTA does not run this addition; None when it does."""
    return addition.supports(node, settings, 1, "an addition")


def plan(node: Node, settings: Settings, given: Sequence[Layout | None]) -> Plan:
    """Make a node ready that `supports` has no objection to."""
    return addition.plan(node, settings, given, 1)
