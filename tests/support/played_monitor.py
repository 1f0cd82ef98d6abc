"""QEMU's monitor as a test plays it: a guest's clock, an HPET, `stop` and `cont`, in made-up time."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from potash.vm.standstill import Standstill
from potash.vm.stoppable import HPET_CAPABILITIES, HPET_COUNTER

PERIOD = 10_000_000
"""Femtoseconds of a tick of QEMU's HPET."""


class Wall:
    """The host's clock, which passes when the test says so."""

    def __init__(self) -> None:
        self.ns = 5_000_000_000

    def __call__(self) -> int:
        return self.ns

    @property
    def seconds(self) -> float:
        """The realtime clock: of another origin."""
        return 1_700_000_000 + self.ns / 1e9


class PlainClock:
    """Guest time as the firmware has it."""

    def __init__(self, wall: Callable[[], int]) -> None:
        self.seconds: Callable[[], float] = lambda: wall() / 1e9
        self.offset = 0
        self.frozen: int | None = None

    def now(self) -> int:
        return round(self.seconds() * 1e9) - self.offset if self.frozen is None else self.frozen

    def freeze(self) -> None:
        if self.frozen is None:
            self.frozen = self.now()

    def advance(self, to: int) -> None:
        self.frozen = max(self.now(), to)

    def thaw(self, offset: int) -> None:
        self.offset, self.frozen = offset, None


class PlayedMonitor:
    """A QEMU that listens at `path`, and answers in `serve`; each answer takes `latency` ns.

    `guest_ns` is what the guest's clocks show. `lag` is how much earlier than its STOP event the
    clock stops. Without `hpet` nothing is at its address.
    """

    def __init__(self, path: Path, wall: Wall, *, hpet: bool = True, running: bool = True) -> None:
        self.wall = wall
        self.hpet = hpet
        self.running = running
        self.latency = 100_000
        self.lag = 0
        self.refuses: set[str] = set()
        self.mute = False
        self.read_latencies: list[int] = []
        """Those of the next reads of registers."""
        self.greeting = b'{"QMP": {"version": {}, "capabilities": ["oob"]}}\r\n'
        self.commands: list[str] = []
        self._stopped_total = 0
        self._stopped_at = None if running else wall()
        self._counter_base = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.setblocking(False)
        self._client: socket.socket | None = None
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.vanish()
        self._listener.close()

    @property
    def attached(self) -> bool:
        return self._client is not None

    @property
    def guest_ns(self) -> int:
        return (self.wall() if self._stopped_at is None else self._stopped_at) - self._stopped_total

    def reset_counter(self) -> None:
        """As a guest that is booted again does."""
        self._counter_base = self.guest_ns

    def serve(self) -> bool:
        """Answer what has come; whether there was anything."""
        if self._client is None:
            try:
                self._client, _ = self._listener.accept()
            except OSError:
                return False
            self.say(self.greeting)
            return True
        if self.mute:
            return False
        try:
            data = self._client.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # who has ended had not read all
            data = b""
        if not data:
            self.vanish()
            return True
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._answer(json.loads(line))
        return bool(lines)

    def stop(self) -> None:
        """Stop the guest, as another client of QEMU can."""
        if self.running:
            self.running = False
            self._stopped_at = self.wall()
            self.wall.ns += self.lag
            self._event("STOP")

    def cont(self, *, started: bool = True) -> None:
        """Go on; unless it has `started`, the clock waits for `start_clock`."""
        if not self.running:
            self.running = True
            self._event("RESUME")
            if started:
                self.wall.ns += self.lag
                self.start_clock()

    def start_clock(self) -> None:
        assert self._stopped_at is not None
        self._stopped_total += self.wall() - self._stopped_at
        self._stopped_at = None

    def vanish(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
            self._received = b""

    def say(self, data: bytes) -> None:
        assert self._client is not None
        with contextlib.suppress(OSError):
            self._client.sendall(data)

    def _answer(self, asked: dict[str, Any]) -> None:
        command = asked["execute"]
        self._identifier = {"id": asked["id"]} if "id" in asked else {}
        latency = self.latency
        if command == "human-monitor-command" and self.read_latencies:
            latency = self.read_latencies.pop(0)
        self.wall.ns += latency // 2
        if command in self.refuses:
            self._reply(error={"class": "GenericError", "desc": "not now"})
        elif command == "query-status":
            status = "running" if self.running else "paused"
            self._reply({"status": status, "running": self.running})
        elif command == "human-monitor-command":
            self._reply(self._dump(asked["arguments"]["command-line"]))
        else:
            if command in ("stop", "cont"):
                self.commands.append(command)
                self.stop() if command == "stop" else self.cont()
            self._reply({})
        self.wall.ns += latency - latency // 2

    def _dump(self, line: str) -> str:
        address = int(line.removeprefix("xp /2wx "), 16)
        if not self.hpet:
            return "Cannot access memory\r\n"
        value = 0
        if address == HPET_CAPABILITIES:
            value = PERIOD << 32 | 0x8086A201
        elif address == HPET_COUNTER:
            value = (self.guest_ns - self._counter_base) // 10
        return f"{address:016x}: 0x{value & 0xFFFFFFFF:08x} 0x{value >> 32:08x}\r\n"

    def _event(self, name: str) -> None:
        seconds, rest = divmod(round(self.wall.seconds * 1e6), 1_000_000)
        self._send({"timestamp": {"seconds": seconds, "microseconds": rest}, "event": name})

    def _reply(self, value: object = None, **error: object) -> None:
        self._send({**(error or {"return": value}), **self._identifier})

    def _send(self, message: dict[str, Any]) -> None:
        if self._client is not None:
            self.say(json.dumps(message).encode() + b"\r\n")


class Scene:
    """A guest, a device's clock, and what stops the one for the other."""

    def __init__(self, folder: Path, limit: float = 300.0, **options: bool) -> None:
        self.wall = Wall()
        self.clock = PlainClock(self.wall)
        self.path = folder / "monitor"
        self.qemu = PlayedMonitor(self.path, self.wall, **options)
        self.still = Standstill(
            [self.path], self.clock, limit, wall=self.wall, realtime=lambda: self.wall.seconds
        )

    def settle(self) -> None:
        """Let both talk until neither has anything to say."""
        quiet = 0
        while quiet < 2:
            self.still.service()
            quiet = 0 if self.qemu.serve() else quiet + 1

    def attach(self) -> None:
        self.still.attach([1])
        self.settle()

    def pass_ns(self, ns: int) -> None:
        self.wall.ns += ns
        self.settle()

    @property
    def error(self) -> int:
        """Guest time as the device has it, less the guest's own: both begin with the host's clock."""
        return self.clock.now() - self.qemu.guest_ns


@contextlib.contextmanager
def scene(folder: Path, limit: float = 300.0, **options: bool) -> Iterator[Scene]:
    made = Scene(folder, limit, **options)
    with made.qemu:
        made.attach()
        yield made


class PlayedWatch:
    """The process that stops guests while a device is late, as a test plays it."""

    def __init__(self, wall: Wall) -> None:
        self.wall = wall
        self.monitors: Sequence[int] = ()
        self.stopped = self.due = self.held = 0

    def expect(self, due: int) -> None:
        self.due = due

    def hold(self, since: int) -> None:
        self.held = since

    def use(self, monitors: Sequence[int]) -> None:
        self.monitors = monitors

    def take(self) -> int:
        stopped, self.stopped = self.stopped, 0
        return stopped

    def seconds(self) -> float:
        return (self.stopped or self.wall()) / 1e9

    def close(self) -> None: ...
