"""The engines of a core: the readable simulator, the fast one, or first one and then the other.

Loading the fast one takes a third of a second; the readable one completes a small program in that
time.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

from potash_device.vta.config import Config
from potash_device.vta.encoding import INSTRUCTION_BYTES
from potash_device.vta.isa import Alu, Gemm
from potash_device.vta.simulator import Event, Simulator
from potash_device.vta.stream import Order, StreamError, decode_stream

if TYPE_CHECKING:
    from potash_device.vta.fast.simulator import FastSimulator


class VtaEngine(Protocol):
    """Executes streams; all engines give the same bits in DRAM and in every buffer."""

    trace: Callable[[Event], None] | None
    """Called before each instruction, when set."""

    @property
    def is_compiled(self) -> bool:
        """True where compiled code is loaded."""

    def run(self, address: int, count: int) -> None:
        """Execute the stream of `count` instructions at physical `address`. Raises StreamError."""

    def execute(self, stream: bytes) -> None:
        """Execute a stream that is not in DRAM. Raises StreamError."""

    def reset(self) -> None:
        """Zero every buffer on the chip."""


before_fast: Callable[[Config], None] = lambda config: None
"""Called before a fast engine is made: what keeps no compiled code itself has it made elsewhere."""


class EngineOptions(TypedDict):
    """Options of every engine. The readable one needs no second thread."""

    step_limit: int
    order: Order
    threads: int


class MakeEngine(Protocol):
    """Makes an engine for a configuration, a DRAM and its base."""

    def __call__(
        self, config: Config, dram: memoryview, base: int, **options: Unpack[EngineOptions]
    ) -> VtaEngine: ...


def _readable(
    config: Config, dram: memoryview, base: int, **options: Unpack[EngineOptions]
) -> Simulator:
    return Simulator(config, dram, base, step_limit=options["step_limit"], order=options["order"])


def _fast(
    config: Config, dram: memoryview, base: int, **options: Unpack[EngineOptions]
) -> "FastSimulator":
    from potash_device.vta.fast.simulator import FastSimulator

    before_fast(config)
    return FastSimulator(config, dram, base, **options)


class AutoSimulator:
    """The readable simulator, until it has taken as long as loading the fast one takes."""

    LOADING_COST = 0.3
    """Seconds that it takes to load the fast simulator, its compiled code being kept."""
    INSTRUCTION_COST = 30e-6
    """Seconds that the readable simulator takes for an instruction."""
    PRODUCT_COST = 1.5e-9
    """Seconds that it takes for each of a micro-op's products."""

    def __init__(
        self, config: Config, dram: memoryview, base: int, **options: Unpack[EngineOptions]
    ) -> None:
        self._load: Callable[[], FastSimulator] = lambda: _fast(config, dram, base, **options)
        self._readable = _readable(config, dram, base, **options)
        self._engine: VtaEngine = self._readable
        self._step_cost = self.PRODUCT_COST * config.batch * config.block_in * config.block_out
        self._left = self.LOADING_COST
        self.trace: Callable[[Event], None] | None = None

    @property
    def is_compiled(self) -> bool:
        return self._engine is not self._readable

    def run(self, address: int, count: int) -> None:
        self.execute(self._readable.fetch(address, count))

    def execute(self, stream: bytes) -> None:
        if self._engine is self._readable:
            self._left -= self._cost(stream)
            if self._left < 0:
                fast = self._load()
                fast.adopt(self._readable)
                self._engine = fast
        self._engine.trace = self.trace
        self._engine.execute(stream)

    def reset(self) -> None:
        self._engine.reset()

    def _cost(self, stream: bytes) -> float:
        """Seconds that the readable simulator would take, about."""
        cost = len(stream) // INSTRUCTION_BYTES * self.INSTRUCTION_COST
        if cost > self._left:
            return cost
        try:
            instructions = decode_stream(stream, self._readable.config)
        except StreamError:
            return cost
        steps = sum(one.steps for one in instructions if isinstance(one, Gemm | Alu))
        return cost + steps * self._step_cost


ENGINES: Mapping[str, MakeEngine] = {"auto": AutoSimulator, "fast": _fast, "readable": _readable}
"""The engines by name. `readable` is what the others are compared with."""

DEFAULT_ENGINE = "auto"
