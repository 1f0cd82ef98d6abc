"""The guest's end of the control channel: it runs commands, streams their output, and reports how
they end.

It is started by the guest's init before the machine is frozen, so that its start-up costs a
restored guest nothing, and serves any number of commands from one thread. Each command gets a
session of its own, and pipes or a pseudo-terminal. Its end is reported after everything that it had
written by then. `serve` uses only a byte stream; everything about the machine is in `main`.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from typing import Any

from potash.vm.frames import PORT, Decoder, Frame, Kind, carried_number, encode, number

PIECE = 1 << 16
NOT_FOUND = 127
NOT_EXECUTABLE = 126
RTC_SET_TIME = 0x4024700A  # include/uapi/linux/rtc.h
RNDADDENTROPY = 0x40085203  # include/uapi/linux/random.h
RNDRESEEDCRNG = 0x5207

Greet = Callable[[Mapping[str, Any]], None]


class Port:
    """The byte stream to the host. Writing waits for the host; reading does not."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_blocking(descriptor, False)

    def send(self, kind: int, channel: int, data: bytes = b"") -> None:
        left = memoryview(encode(kind, channel, data))
        while left:
            try:
                left = left[os.write(self.descriptor, left) :]
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(self.descriptor, select.POLLOUT)
                waiting.poll()


class Command:
    """A running command: its process, and this end of its pipes."""

    def __init__(self, channel: int, request: Mapping[str, Any]) -> None:
        self.channel = channel
        environment = dict(os.environ, **request.get("env", {}))
        self.terminal = request.get("terminal") is not None
        self.pending = bytearray()
        self.ended = False
        if self.terminal:
            parent_end, child_end = os.openpty()
            rows, columns = request["terminal"]
            resize(parent_end, rows, columns)
            self.streams: dict[int, int] = {parent_end: Kind.OUTPUT}
            self.input: int | None = parent_end
            standard: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), child_end)
        else:
            standard = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            child_end = -1
        try:
            self.process = subprocess.Popen(
                request["argv"],
                env=environment,
                cwd=request.get("cwd"),
                start_new_session=True,
                # One thread: nothing can be held locked in the child.
                preexec_fn=take_terminal if self.terminal else None,  # noqa: PLW1509
                bufsize=0,
                **standard,
            )
        except BaseException:
            if self.terminal:
                os.close(parent_end)
            raise
        finally:
            if child_end >= 0:
                os.close(child_end)
        if not self.terminal:
            assert self.process.stdin and self.process.stdout and self.process.stderr
            self.input = os.dup(self.process.stdin.fileno())
            self.streams = {
                os.dup(self.process.stdout.fileno()): Kind.OUTPUT,
                os.dup(self.process.stderr.fileno()): Kind.ERRORS,
            }
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                stream.close()
        self.exit = os.pidfd_open(self.process.pid)
        for descriptor in {*self.streams, self.input}:
            assert descriptor is not None
            os.set_blocking(descriptor, False)

    def write(self) -> int:
        """Pass as much of the pending input to the command as it reads. Returns the number of
        bytes."""
        if self.input is None:
            taken = len(self.pending)
            self.pending.clear()
            return taken
        taken = 0
        try:
            while self.pending:
                count = os.write(self.input, self.pending[:PIECE])
                del self.pending[:count]
                taken += count
        except BlockingIOError:
            return taken
        except OSError:
            # The command reads no more: the rest of its input counts as read.
            taken += len(self.pending)
            self.pending.clear()
            self.close_input()
            return taken
        if self.ended:
            self.close_input()
        return taken

    def close_input(self) -> None:
        if self.input is not None and not self.terminal:
            os.close(self.input)
            self.input = None

    def read(self, descriptor: int) -> bytes | None:
        """The next bytes of a stream; None while it has none, empty at its end."""
        try:
            return os.read(descriptor, PIECE)
        except BlockingIOError:
            return None
        except OSError:
            # A pseudo-terminal whose last user is gone answers with EIO.
            return b""

    def close(self) -> None:
        self.close_input()
        for descriptor in (*self.streams, self.exit):
            os.close(descriptor)
        self.streams = {}


def take_terminal() -> None:
    """Make standard input the session's controlling terminal; called in the child."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("<HHHH", rows, columns, 0, 0))


class Agent:
    """The server of one byte stream, until it ends; `greet` is called with every greeting, before
    it is answered."""

    def __init__(self, port: int, greet: Greet) -> None:
        self.port = Port(port)
        self.greet = greet
        self.decoder = Decoder()
        self.commands: dict[int, Command] = {}
        self.poll = select.poll()
        self.owners: dict[int, Command] = {}
        self.poll.register(port, select.POLLIN)

    def serve(self) -> None:
        """Serve until the stream ends."""
        while True:
            for descriptor, events in self.poll.poll():
                if descriptor == self.port.descriptor:
                    if not self.receive():
                        return
                elif descriptor in self.owners:
                    self.attend(self.owners[descriptor], descriptor, events)

    def close(self) -> None:
        for command in list(self.commands.values()):
            self.kill(command, signal.SIGKILL)
            command.process.wait()
            self.forget(command)

    def receive(self) -> bool:
        try:
            data = os.read(self.port.descriptor, PIECE)
        except BlockingIOError:
            return True
        for frame in self.decoder.feed(data):
            self.handle(frame)
        return bool(data)

    def handle(self, frame: Frame) -> None:
        command = self.commands.get(frame.channel)
        if frame.kind == Kind.HELLO:
            greeting = json.loads(frame.data)
            self.greet(greeting)
            self.port.send(Kind.HELLO, 0, json.dumps({"nonce": greeting["nonce"]}).encode())
        elif frame.kind == Kind.PING:
            self.port.send(Kind.PONG, 0, frame.data)
        elif frame.kind == Kind.RUN and command is None:
            self.run(frame.channel, json.loads(frame.data))
        elif command is None:
            return  # it ended while the frame was on its way
        elif frame.kind == Kind.INPUT:
            self.feed(command, frame.data)
        elif frame.kind == Kind.SIGNAL:
            self.kill(command, carried_number(frame))
        elif frame.kind == Kind.RESIZE and command.terminal and command.input is not None:
            resize(command.input, *json.loads(frame.data))

    def run(self, channel: int, request: Mapping[str, Any]) -> None:
        try:
            command = Command(channel, request)
        except OSError as error:
            text = f"{error.filename or request['argv'][0]}: {error.strerror}\n"
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            self.port.send(Kind.ERRORS, channel, text.encode())
            self.port.send(Kind.EXIT, channel, number(code))
            return
        self.commands[channel] = command
        for descriptor in (*command.streams, command.exit):
            self.owners[descriptor] = command
            self.poll.register(descriptor, select.POLLIN)

    def feed(self, command: Command, data: bytes) -> None:
        command.pending += data
        command.ended = command.ended or not data
        self.push(command)

    def push(self, command: Command) -> None:
        """Pass pending input to the command, and poll for room when there is none."""
        before = command.input
        taken = command.write()
        if taken:
            self.port.send(Kind.TAKEN, command.channel, number(taken))
        if before is None:
            return
        if command.terminal:
            events = select.POLLIN | (select.POLLOUT if command.pending else 0)
            if before in command.streams:
                self.poll.register(before, events)
        elif command.pending:
            self.owners[before] = command
            self.poll.register(before, select.POLLOUT)
        elif before in self.owners:
            del self.owners[before]
            self.poll.unregister(before)

    def attend(self, command: Command, descriptor: int, events: int) -> None:
        if descriptor == command.exit:
            self.finish(command)
        elif descriptor in command.streams and events & ~select.POLLOUT:
            self.forward(command, descriptor)
        if events & (select.POLLOUT | select.POLLERR) and descriptor == command.input:
            self.push(command)

    def forward(self, command: Command, descriptor: int) -> bool:
        """Forward one piece of a stream to the host. False when there is none now."""
        data = command.read(descriptor)
        if data:
            self.port.send(command.streams[descriptor], command.channel, data)
        elif data == b"":
            self.poll.unregister(descriptor)
            del self.owners[descriptor]
            del command.streams[descriptor]
            if descriptor == command.input:
                command.input = None
            os.close(descriptor)
        return bool(data)

    def finish(self, command: Command) -> None:
        """Send the rest of an exited command's output, then its exit code.

        A process that the command started may hold the pipes open for ever, so their end is not
        awaited.
        """
        code = command.process.wait()
        for descriptor in list(command.streams):
            while self.forward(command, descriptor):
                pass
        self.forget(command)
        self.port.send(Kind.EXIT, command.channel, number(code))

    def forget(self, command: Command) -> None:
        for descriptor in [d for d, owner in self.owners.items() if owner is command]:
            self.poll.unregister(descriptor)
            del self.owners[descriptor]
        command.close()
        del self.commands[command.channel]

    def kill(self, command: Command, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, ValueError, OSError):
            os.killpg(command.process.pid, number)


def settle(greeting: Mapping[str, Any]) -> None:
    """Set the clocks and the random state of a machine that was frozen: the clocks are old, and
    others resumed from the same state have the same random numbers."""
    now = int(greeting["time_ns"])
    time.clock_settime_ns(time.CLOCK_REALTIME, now)
    year, month, *rest = time.gmtime(now // 10**9)[:6]
    with open("/dev/rtc0", "rb", buffering=0) as hardware:
        fields = (*reversed(rest), month - 1, year - 1900, 0, 0, 0)
        fcntl.ioctl(hardware, RTC_SET_TIME, struct.pack("9i", *fields))
    entropy = bytes.fromhex(greeting["entropy"])
    with open("/dev/urandom", "wb", buffering=0) as source:
        counted = number(8 * len(entropy)) + number(len(entropy)) + entropy
        fcntl.ioctl(source, RNDADDENTROPY, counted)
        fcntl.ioctl(source, RNDRESEEDCRNG)


def find_port() -> str:
    """The device node of the control channel's virtio-serial port."""
    for port in os.listdir("/sys/class/virtio-ports"):
        with open(f"/sys/class/virtio-ports/{port}/name") as name:
            if name.read().strip() == PORT:
                return f"/dev/{port}"
    raise SystemExit(f"this machine has no port {PORT}")


def main() -> None:
    agent = Agent(os.open(find_port(), os.O_RDWR | os.O_CLOEXEC), settle)
    try:
        while True:
            agent.serve()
            # A virtio port ends while the host's side is absent, as it is for a moment when a
            # frozen machine comes back.
            time.sleep(0.01)
    finally:
        agent.close()


if __name__ == "__main__":
    main()
