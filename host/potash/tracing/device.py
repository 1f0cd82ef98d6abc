"""One device's part of a trace: from the lines that its processes wrote to slices on tracks.

Commands are drawn from their fetch to their completion, on tracks of their queue: as many as there
were commands under way at a time. Each process has its own tracks, and arrows lead from one to the
next: from a command to its message, to its job, to the worker, to the accelerator's modules.
"""

import base64
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nvme_spec.commands import ReadWrite
from nvme_spec.opcodes import AdminOpcode, IoOpcode
from nvme_spec.registers import DOORBELL_BASE, register_at
from nvme_spec.status import describe
from potash.sdk.errors import restated
from potash.tracing.document import Document
from potash.tracing.modelled import Modelled, NodeOf, Nodes
from potash_device.vta.config import Config, ConfigError
from potash_firmware.naming import CommandNames, command_name

Line = Mapping[str, Any]

MODELLED = 1 << 23
"""Added to a worker's process number for its tensor accelerator: Linux has 2^22 of them."""

WRITES, DMA, MAILBOX, INTERRUPTS = "host writes", "DMA", "mailbox", "interrupts"
AT_ONCE, PROGRAM, STATE = "media at once", "program", "controller"
EVENTS = "admin queue, event requests"
FIXED_TRACKS = (STATE, WRITES, INTERRUPTS, MAILBOX, DMA, AT_ONCE)
"""Tracks of a device's own process, from the top; its queues are below."""

FIRST_QUEUE = 100
"""Place of the first queue's tracks; each queue has room for as many."""

INSTANT = 1e-7
"""Seconds that a message is drawn as, to be seen, and for arrows to have a slice to end at."""

RANGES = {IoOpcode.READ, IoOpcode.WRITE, IoOpcode.COMPARE, IoOpcode.VERIFY, IoOpcode.WRITE_ZEROES}

PROCESSES = {"potash": "device (RPU)", "potash-apu": "APU"}
PLACES = {"potash": 0, "potash-apu": 1}
"""Places of processes from the top of the trace; workers and accelerators are below."""

TIMES = ("time", "began", "ends")

LANGUAGE = {
    "worker.job": "job",
    "worker.execution": "execution",
    "worker.input": "read input",
    "bpf.program": "program",
    "bpf.compile": "compile",
    "tflite.load": "load model",
    "tflite.invoke": "run model",
    "tflite.partition": "partition on the VTA",
}
"""Names of a worker's spans; other spans are named after their points."""


@dataclass
class _Command:
    process: int
    fetched: float
    name: str
    about: dict[str, object]
    queue: str
    lane: int

    @property
    def track(self) -> str:
        return f"{self.queue} ({self.lane + 1})" if self.lane else self.queue


class DeviceTrace:
    """Takes the lines of one device in their order, and writes what comes of them to `document`.

    `title` is put before the names of its processes, and `place` is where they stand.
    """

    def __init__(self, document: Document, modelled: Modelled, title: str, place: int) -> None:
        self._document = document
        self._modelled = modelled
        self._title = title
        self._place = place
        self._last = 0.0
        self._commands: dict[tuple[int, int], deque[_Command]] = defaultdict(deque)
        self._lanes: dict[str, list[bool]] = defaultdict(list)
        """For each queue, flags of the tracks that are in use."""
        self._flash_lanes: list[float] = []
        """Times at which the tracks of the modelled drive's requests become free."""
        self._messages: dict[str, deque[int]] = defaultdict(deque)
        """Arrows of messages that have been sent and not received, by what names a message."""
        self._requests: dict[int, float] = {}
        self._phases: dict[tuple[int, int], int] = {}
        """Number of open slices on an accelerator's track: a job, and a phase of it."""
        self._handed_over: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._extended: CommandNames = {}
        self._configs: dict[int, Config] = {}
        self._coming: dict[int, Nodes] = {}
        """The nodes of the stream that a process runs next."""
        self._takes: dict[str, Callable[[Line], None]] = {
            "process": self._process,
            "board.host_write": self._host_write,
            "board.interrupt": self._interrupt,
            "rpu.extensions": self._extensions,
            "rpu.state": self._state,
            "rpu.fetch": self._fetch,
            "rpu.forward": self._forward,
            "rpu.complete": self._complete,
            "rpu.modelled": self._flash,
            "dma": self._dma,
            "media.at_once": lambda line: self._drawn(line, AT_ONCE, line["what"], "media"),
            "media.work": lambda line: self._drawn(
                line, line.get("thread", AT_ONCE), line["what"], "media"
            ),
            "mailbox.send": self._send,
            "mailbox.receive": self._receive,
            "apu.job": self._job,
            "apu.hand_over": self._hand_over,
            "vta.core": self._core,
            "vta.stream": self._stream,
            "tflite.nodes": self._nodes,
        }

    def take(self, line: Line) -> None:
        """The next line. Raises KeyError, TypeError or ValueError for one that is no trace's."""
        if not all(isinstance(line.get(key, 0.0), int | float) for key in TIMES):
            raise TypeError("a time is not a number")
        take = self._takes.get(line["point"])
        if take is not None:
            take(line)
        elif "began" in line:
            self._span(line)
        self._last = max(self._last, line["time"])

    def close(self) -> None:
        """Draw what has no end to the end of the trace."""
        self._end_commands("unanswered")
        self._end_jobs(self._last)

    def _end_jobs(self, moment: float) -> None:
        """Nobody will tell of the end of what runs on accelerators."""
        for (process, accelerator), depth in self._phases.items():
            for _ in range(depth):
                self._document.end(process, _job_track(accelerator), moment)
        self._phases.clear()

    # Processes.

    def _process(self, line: Line) -> None:
        name, process = line["name"], line["pid"]
        shown = PROCESSES.get(name, name.removeprefix("potash-").replace("worker", "worker "))
        self._names[process] = shown
        place = self._place + PLACES.get(name, len(PLACES))
        self._document.name_process(process, self._title + shown, place)
        if name == "potash-apu":  # perhaps another one, after the first has died
            self._end_jobs(line["time"])
            self._messages.clear()
            self._handed_over.clear()
        if name == "potash":
            for place, track in enumerate(FIXED_TRACKS):
                self._document.sort_track(process, track, place)

    # The device's own process.

    def _host_write(self, line: Line) -> None:
        offset = line["offset"]
        value = int.from_bytes(bytes.fromhex(line["data"]), "little")
        about = {"offset": f"{offset:#x}", "value": f"{value:#x}"}
        self._document.instant(line["pid"], WRITES, _written(offset, value), line["time"], about)

    def _interrupt(self, line: Line) -> None:
        name = f"vector {line['vector']}"
        self._document.instant(line["pid"], INTERRUPTS, name, line["time"], {})

    def _state(self, line: Line) -> None:
        self._document.instant(line["pid"], STATE, line["state"], line["time"], {})
        if line["state"] == "DISABLED":
            self._last = line["time"]
            self._end_commands("ended by a reset")

    def _extensions(self, line: Line) -> None:
        self._extended = {(admin, csi, opcode): n for admin, csi, opcode, n in line["names"]}

    def _fetch(self, line: Line) -> None:
        qid, queue = line["qid"], _queue(line["qid"], line["opcode"])
        name, about = (
            self._extended.get((qid == 0, line.get("csi", 0), line["opcode"]))
            or command_name(line["opcode"], admin=qid == 0, csi=line.get("csi", 0)),
            _about_command(line),
        )
        lanes = self._lanes[queue]
        lane = lanes.index(False) if False in lanes else len(lanes)
        command = _Command(line["pid"], line["time"], name, about, queue, lane)
        if lane == len(lanes):
            lanes.append(True)
            place = FIRST_QUEUE * (qid + 1) + min(lane, FIRST_QUEUE - 1)
            self._document.sort_track(line["pid"], command.track, place)
        lanes[lane] = True
        self._commands[qid, line["cid"]].append(command)

    def _forward(self, line: Line) -> None:
        waiting = self._commands[line["qid"], line["cid"]]
        sent = self._requests.pop(line["tag"], None)
        if not waiting or sent is None:
            return
        number = self._document.arrow_from(line["pid"], waiting[-1].track, "request", sent)
        self._document.arrow_to(line["pid"], MAILBOX, "request", sent, number)

    def _complete(self, line: Line) -> None:
        waiting = self._commands[line["qid"], line["cid"]]
        if waiting:
            status, dw0 = describe(line["status"]), line["dw0"]
            self._draw(waiting.popleft(), line["time"], status, dw0)

    def _flash(self, line: Line) -> None:
        """A request to the modelled drive, for as long as that takes, on the first track free."""
        process, began, ends = line["pid"] + MODELLED, line["began"], line["ends"]
        free = (lane for lane, until in enumerate(self._flash_lanes) if until <= began)
        lane = next(free, len(self._flash_lanes))
        if not self._flash_lanes:
            place = self._place + len(PLACES) + 1
            self._document.name_process(process, f"{self._title}drive (modelled)", place)
        self._flash_lanes[lane : lane + 1] = [ends]
        track = f"requests ({lane + 1})"
        self._document.sort_track(process, track, lane)
        self._document.slice(process, track, line["op"].lower(), began, ends, category="modelled")

    def _end_commands(self, why: str) -> None:
        for waiting in self._commands.values():
            while waiting:
                self._draw(waiting.popleft(), self._last, why, 0)

    def _draw(self, command: _Command, ended: float, status: str, dw0: int) -> None:
        self._lanes[command.queue][command.lane] = False
        about = command.about | {"status": status, "dw0": dw0}
        self._document.slice(
            command.process, command.track, command.name, command.fetched, ended,
            category="nvme", about=about,
        )  # fmt: skip

    def _dma(self, line: Line) -> None:
        way = "to host" if line["to_host"] else "from host"
        self._drawn(line, DMA, f"{way}, {line['bytes']} bytes", "dma")

    def _drawn(self, line: Line, track: str, name: str, category: str) -> None:
        self._document.slice(
            line["pid"], track, name, line["began"], line["time"],
            category=category, about=_about(line),
        )  # fmt: skip

    # The mailbox.

    def _send(self, line: Line) -> None:
        moment = line["time"]
        self._message(line)
        number = self._document.arrow_from(line["pid"], MAILBOX, line["message"], moment)
        self._messages[_message_key(line)].append(number)
        if line["message"] == "Request":
            self._requests[line["tag"]] = moment

    def _receive(self, line: Line) -> None:
        self._message(line)
        sent = self._messages[_message_key(line)]
        if sent:
            number = sent.popleft()
            self._document.arrow_to(line["pid"], MAILBOX, line["message"], line["time"], number)

    def _message(self, line: Line) -> None:
        name = line["message"]
        if name == "Request":
            name += f" {command_name(line['opcode'], admin=line['admin'])}"
        moment = line["time"]
        way = {"way": line["point"].removeprefix("mailbox.")}
        self._document.slice(
            line["pid"], MAILBOX, name, moment, moment + INSTANT,
            category="mailbox", about=way | _about(line),
        )  # fmt: skip

    # Jobs.

    def _job(self, line: Line) -> None:
        process, accelerator, moment = line["pid"], line["accelerator"], line["time"]
        track, key = _job_track(accelerator), (process, accelerator)
        depth = self._phases.pop(key, 0)
        if not depth and line["event"] != "START":
            return
        if not depth:
            self._document.begin(process, track, "job", moment, category="job")
            self._document.begin(process, track, "waits", moment, category="phase")
            self._phases[key] = 2
            return
        if line["before"] != line["after"]:
            self._document.end(process, track, moment)
            depth -= 1
        if not line["busy"]:
            for _ in range(depth):
                self._document.end(process, track, moment, {"result": line["after"]})
            return
        if depth < 2:
            name = line["after"].lower()
            self._document.begin(process, track, name, moment, category="phase")
        self._phases[key] = 2

    def _hand_over(self, line: Line) -> None:
        process, accelerator, moment = line["pid"], line["accelerator"], line["time"]
        track = _job_track(accelerator)
        if self._phases.get((process, accelerator)) == 2:
            self._document.end(process, track, moment)
            self._document.begin(process, track, "running", moment, category="phase")
        number = self._document.arrow_from(process, track, "job", moment)
        self._handed_over[accelerator] = number

    def _span(self, line: Line) -> None:
        """Draw a worker's span, which may be inside of another one."""
        process, point = line["pid"], line["point"]
        name: str = LANGUAGE.get(point) or point
        if point == "bpf.helper":
            name = line["helper"]
        self._drawn(line, line.get("thread", PROGRAM), name, point.partition(".")[0])
        if point == "worker.job" and line["accelerator"] in self._handed_over:
            number = self._handed_over.pop(line["accelerator"])
            self._document.arrow_to(process, PROGRAM, "job", line["began"], number)

    # The tensor accelerator.

    def _core(self, line: Line) -> None:
        process = line["pid"]
        with restated(ConfigError, to=ValueError):
            self._configs[process] = Config.from_mapping(line["config"])
        title = self._title + self._names.get(process, "")
        self._modelled.name(process + MODELLED, title, self._place + len(PLACES) + 1)

    def _nodes(self, line: Line) -> None:
        nodes = line["nodes"]
        self._coming[line["pid"]] = tuple(
            NodeOf(str(name), int(index), int(first), int(end)) for name, index, first, end in nodes
        )

    def _stream(self, line: Line) -> None:
        process, began = line["pid"], line["began"]
        stream = base64.b64decode(line["stream"])
        core = process + MODELLED
        nodes = self._coming.pop(process, ())
        shown = self._modelled.add(core, self._configs[process], stream, began, nodes)
        self._document.slice(
            process, PROGRAM, "VTA stream", began, line["time"], category="vta", about=shown.about
        )
        if shown.track is not None:
            number = self._document.arrow_from(process, PROGRAM, "stream", began)
            self._document.arrow_to(core, shown.track, "stream", shown.start, number)


def _about(line: Line) -> dict[str, object]:
    """Fields of a line, other than place and time."""
    return {
        key: value
        for key, value in line.items()
        if key not in ("time", "pid", "point", "thread", "began", "message")
    }


def _about_command(line: Line) -> dict[str, object]:
    """A command's fields: its blocks, or the dwords that are its own."""
    about = {"cid": line["cid"], "opcode": f"{line['opcode']:#04x}", "nsid": line["nsid"]}
    cdws = tuple(line[f"cdw{number}"] for number in range(10, 16))
    if line["qid"] and line["opcode"] in RANGES:
        blocks = ReadWrite.decode(cdws)
        return about | {"slba": blocks.slba, "blocks": blocks.blocks}
    return about | {f"cdw{number}": f"{one:#x}" for number, one in enumerate(cdws, 10)}


def _queue(qid: int, opcode: int) -> str:
    """Track of a command. Requests for events, which wait most of the time, have their own."""
    if qid:
        return f"queue {qid}"
    return EVENTS if opcode == AdminOpcode.ASYNCHRONOUS_EVENT_REQUEST else "admin queue"


def _job_track(accelerator: int) -> str:
    return f"accelerator {accelerator}"


def _message_key(line: Line) -> str:
    """Key of a message at both ends: its kind, and its tag or its accelerator."""
    return f"{line['message']} {line.get('tag', line.get('accelerator'))}"


def _written(offset: int, value: int) -> str:
    """Description of a host's write to BAR 0."""
    if offset >= DOORBELL_BASE:
        qid, completion = divmod((offset - DOORBELL_BASE) // 4, 2)
        return (
            f"completion queue {qid}: head {value}" if completion else f"queue {qid}: tail {value}"
        )
    register = register_at(offset)
    return f"{register.name if register else 'a register'} = {value:#x}"
