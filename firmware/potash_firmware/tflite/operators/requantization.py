"""Scaling a 32-bit accumulator down to int8 on the VTA's ALU, with the reference kernels' bits.

The ALU multiplies 32 bits by 32 and keeps the low half, so the high half of a doubling high multiply
has to be put together from products that fit. With the accumulator x = high * 2^15 + low, low signed,
and the significand s = s_high * 2^16 + s_low,

    (x * s + 2^30) / 2^31 = high * s_high
        + (low * s_high + (high * s_low + low * s_low / 2^15) / 2 + 2^14) / 2^15,

and rounding each division down in turn gives the whole rounded down. No product leaves 32 bits while
|x| < 2^28. Then follow the division by a power of two with halves away from zero, the zero point and
the clamp; the store keeps the low 8 bits.
"""

from dataclasses import dataclass
from enum import IntEnum

from potash_device.vta.isa import AluOpcode
from potash_firmware.tflite.quantization import Multiplier

# Accumulators must stay below this in magnitude.
ACCUMULATOR_LIMIT = 1 << 28


class Register(IntEnum):
    """A part of the accumulator memory, one tile long, which the ALU uses as a vector register."""

    VALUE = 0
    """The accumulator, and in the end the result."""
    HIGH = 1
    LOW_PRODUCT = 2
    HIGH_PRODUCT = 3
    SIGN = 4


SCRATCH = (Register.HIGH, Register.LOW_PRODUCT, Register.HIGH_PRODUCT, Register.SIGN)
"""What must be zero before the first step: the ALU copies by adding to zero."""


class Constant(IntEnum):
    """A vector with one value in every lane, for operands that a 16-bit immediate cannot hold."""

    SIGNIFICAND_HIGH = 0
    SIGNIFICAND_LOW = 1
    HALF = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One ALU instruction over a whole tile: target = target `opcode` operand (int: immediate)."""

    opcode: AluOpcode
    target: Register
    operand: Register | Constant | int


@dataclass(frozen=True, slots=True)
class Requantization:
    """The ALU's steps from `Register.VALUE` to a clamped int8 there, and their constant vectors."""

    steps: tuple[Step, ...]
    constants: tuple[int, ...]
    """One int32 for each `Constant`, in order."""


# VALUE := (VALUE * significand + 2^30) >> 31, as the module's docstring has it.
_DOUBLING_HIGH_MULTIPLY = (
    Step(AluOpcode.ADD, Register.HIGH, Register.VALUE),
    Step(AluOpcode.ADD, Register.HIGH, 1 << 14),
    Step(AluOpcode.SHR, Register.HIGH, 15),
    # The low 15 bits with their sign: up against the top of the word and back.
    Step(AluOpcode.SHR, Register.VALUE, -17),
    Step(AluOpcode.SHR, Register.VALUE, 17),
    Step(AluOpcode.ADD, Register.LOW_PRODUCT, Register.VALUE),
    Step(AluOpcode.MUL, Register.LOW_PRODUCT, Constant.SIGNIFICAND_LOW),
    Step(AluOpcode.SHR, Register.LOW_PRODUCT, 15),
    Step(AluOpcode.ADD, Register.HIGH_PRODUCT, Register.HIGH),
    Step(AluOpcode.MUL, Register.HIGH_PRODUCT, Constant.SIGNIFICAND_LOW),
    Step(AluOpcode.ADD, Register.LOW_PRODUCT, Register.HIGH_PRODUCT),
    Step(AluOpcode.SHR, Register.LOW_PRODUCT, 1),
    Step(AluOpcode.MUL, Register.VALUE, Constant.SIGNIFICAND_HIGH),
    Step(AluOpcode.ADD, Register.VALUE, Register.LOW_PRODUCT),
    Step(AluOpcode.ADD, Register.VALUE, 1 << 14),
    Step(AluOpcode.SHR, Register.VALUE, 15),
    Step(AluOpcode.MUL, Register.HIGH, Constant.SIGNIFICAND_HIGH),
    Step(AluOpcode.ADD, Register.VALUE, Register.HIGH),
)


def _divide_by_power_of_two(exponent: int) -> tuple[Step, ...]:
    if exponent == 0:
        return ()
    return (
        # -1 where the value is negative: a half then goes down, away from zero.
        Step(AluOpcode.ADD, Register.SIGN, Register.VALUE),
        Step(AluOpcode.SHR, Register.SIGN, 31),
        Step(AluOpcode.ADD, Register.VALUE, Register.SIGN),
        Step(AluOpcode.ADD, Register.VALUE, Constant.HALF),
        Step(AluOpcode.SHR, Register.VALUE, exponent),
    )


def requantization(multiplier: Multiplier, zero_point: int, low: int, high: int) -> Requantization:
    """The steps for clamp(value * multiplier + zero_point, low, high); the shift is to the right."""
    if multiplier.shift > 0:
        raise ValueError(f"the multiplier {multiplier} is above one")
    exponent = -multiplier.shift
    return Requantization(
        steps=(
            *_DOUBLING_HIGH_MULTIPLY,
            *_divide_by_power_of_two(exponent),
            Step(AluOpcode.ADD, Register.VALUE, zero_point),
            Step(AluOpcode.MAX, Register.VALUE, low),
            Step(AluOpcode.MIN, Register.VALUE, high),
        ),
        constants=(
            multiplier.significand >> 16,
            multiplier.significand & 0xFFFF,
            1 << exponent - 1 if exponent else 0,
        ),
    )
