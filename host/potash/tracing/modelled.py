"""The tensor accelerator's modules in modelled time, beside the wall time of what they are part of.

A stream's modules begin where the stream began to be simulated, and take as long as a chip would.
So they end earlier or later than the simulation does. Where one stream would still go on when the
next begins, the next is shown behind it, as a chip has one of each module.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from potash.tracing import streams
from potash.tracing.document import MICROSECONDS, Document
from potash_device.vta import assembly, timing
from potash_device.vta.config import Config
from potash_device.vta.encoding import INSTRUCTION_BYTES, InstructionError
from potash_device.vta.isa import Stage
from potash_device.vta.stream import StreamError
from potash_device.vta.timing.parameters import Parameters
from potash_device.vta.timing.result import Timing

SHOWN_IN_FULL = 50_000
"""Instructions of a whole trace that are shown one by one; of later streams their modules are."""

COMPILED_FROM = 2_000
"""Instructions from which on the compiled clock is worth loading."""

KEPT = 64
"""Streams whose timing is remembered: models run the same ones again and again."""

SUMMARY = ", in all"

NODES = "nodes"
"""The track of the model's nodes."""


class NodeOf(NamedTuple):
    """A model's node and its instructions of a stream, from `first` on, before `end`."""

    operator: str
    number: int
    first: int
    end: int


Nodes: TypeAlias = tuple[NodeOf, ...]


class Shown(NamedTuple):
    """Description of a stream, and track and time of its first slice, if there is one."""

    about: Mapping[str, object]
    track: str | None
    start: float


@dataclass
class Modelled:
    """The modules of every tensor accelerator in one document."""

    document: Document
    parameters: Parameters
    left: int = field(default_factory=lambda: SHOWN_IN_FULL)
    _free: dict[int, float] = field(default_factory=dict)
    """Time at which the last slice of each accelerator's modules ends."""
    _known: dict[tuple[int, bytes], Timing | None] = field(default_factory=dict)
    _configs: list[Config] = field(default_factory=list)

    def name(self, process: int, of: str, place: int) -> None:
        """Make the tracks of a core, whose number in the document is `process`."""
        clock = self.parameters.clock / MICROSECONDS
        title = f"{of}: VTA, modelled at {clock:g} MHz"
        self.document.name_process(process, title, place)
        for below, track in enumerate((NODES, *streams.TRACKS)):
            self.document.sort_track(process, track, below)

    def add(
        self, process: int, config: Config, stream: bytes, began: float, nodes: Nodes = ()
    ) -> Shown:
        """Show a stream that began to run at `began`, and the nodes that it computes."""
        about: dict[str, object] = {"instructions": len(stream) // INSTRUCTION_BYTES}
        found = self._timing(config, stream)
        if found is None:
            return Shown(about, None, began)
        clock = found.parameters.clock
        start = max(began, self._free.get(process, began))
        self._free[process] = start + found.cycles / clock
        for node in nodes:
            self._node(process, node, found, start)
        if len(found) <= self.left:
            self.left -= len(found)
            texts = [assembly.disassemble(word, config) for word in assembly.words(stream)]
            streams.show(self.document, process, found, texts, lambda cycle: start + cycle / clock)
            # In the middle of its first cycle, so that rounding leaves it there.
            track, first = streams.FETCH, (next(iter(found)).fetching + 0.5) / clock
        else:
            self._in_short(process, found, start)
            track, first = Stage.LOAD.name, 0.0
        about |= {
            "modelled_cycles": found.cycles,
            "modelled_us": round(found.cycles / clock * MICROSECONDS, 3),
            "shown_later_by_us": round((start - began) * MICROSECONDS, 3),
            "read_bytes": found.read_bytes,
            "written_bytes": found.written_bytes,
        }
        return Shown(about, track, start + first)

    def _node(self, process: int, node: NodeOf, found: Timing, start: float) -> None:
        if not 0 <= node.first < node.end <= len(found):
            return
        begin, end = found.interval(node.first, node.end)
        clock = found.parameters.clock
        self.document.slice(
            process,
            NODES,
            node.operator,
            start + begin / clock,
            start + end / clock,
            category="tflite",
            about={
                "node": node.number,
                "instructions": node.end - node.first,
                "cycles": end - begin,
            },
        )

    def _timing(self, config: Config, stream: bytes) -> Timing | None:
        """The timing of a stream; None if the timing model cannot run it."""
        if config not in self._configs:
            self._configs.append(config)
        key = self._configs.index(config), stream
        if key not in self._known:
            if len(self._known) >= KEPT:
                self._known.clear()
            compiled = len(stream) // INSTRUCTION_BYTES >= COMPILED_FROM
            try:
                found = timing.run(config, self.parameters, stream, compiled=compiled)
            except (StreamError, InstructionError):
                found = None
            self._known[key] = found
        return self._known[key]

    def _in_short(self, process: int, found: Timing, start: float) -> None:
        end = start + found.cycles / found.parameters.clock
        for stage in Stage:
            about: dict[str, object] = {"busy_cycles": found.busy[stage]}
            about |= {f"{kind.name} cycles": cycles for kind, cycles in found.work[stage].items()}
            self.document.slice(
                process, stage.name, stage.name + SUMMARY, start, end, category="work", about=about
            )
