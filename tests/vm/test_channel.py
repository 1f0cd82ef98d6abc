"""The channel's two ends against each other, with no machine between them."""

from __future__ import annotations

import os
import select
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator

import pytest

from potash.vm.channel import Channel
from potash.vm.errors import GuestError, GuestTimeout
from potash.vm.frames import WINDOW, Kind, encode
from support.vm import agent_process, local_channel

LIMIT = 30.0


@pytest.fixture
def channel() -> Iterator[Channel]:
    with local_channel() as channel:
        yield channel


def sh(channel: Channel, script: str, stdin: bytes | None = None) -> tuple[int, bytes, bytes]:
    out, err = bytearray(), bytearray()
    command = channel.start(["sh", "-c", script], stdin=stdin, stdout=out.extend, stderr=err.extend)
    return command.wait(LIMIT), bytes(out), bytes(err)


def test_output_errors_and_exit_code_come_apart(channel: Channel) -> None:
    assert sh(channel, "echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n")


def test_a_command_without_input_reads_its_end(channel: Channel) -> None:
    assert sh(channel, "cat; echo done") == (0, b"done\n", b"")


def test_input_far_beyond_the_window_comes_back_whole(channel: Channel) -> None:
    # The command answers while it is still being fed, so both directions are full at once.
    data = os.urandom(1 << 20) * 8
    assert sh(channel, "cat", data) == (0, data, b"")


def test_input_may_come_from_a_file_and_from_a_pipe(channel: Channel) -> None:
    data = os.urandom(3 * WINDOW + 17)
    out = bytearray()
    with tempfile.TemporaryFile() as source:
        source.write(data)
        source.seek(0)
        assert channel.start(["cat"], stdin=source, stdout=out.extend).wait(LIMIT) == 0
    assert out == data
    reader, writer = os.pipe()

    def write() -> None:
        with open(writer, "wb") as pipe:
            pipe.write(data)

    thread = threading.Thread(target=write)
    out.clear()
    with open(reader, "rb") as pipe:
        thread.start()
        assert channel.start(["cat"], stdin=pipe, stdout=out.extend).wait(LIMIT) == 0
        thread.join(LIMIT)
    assert out == data


def test_input_that_nobody_reads_blocks_nobody(channel: Channel) -> None:
    assert sh(channel, "exec <&-; echo on", bytes(4 * WINDOW)) == (0, b"on\n", b"")
    sleeper = channel.start(["sleep", "60"], stdin=bytes(4 * WINDOW))
    assert sh(channel, "echo beside") == (0, b"beside\n", b"")
    sleeper.signal(signal.SIGTERM)
    assert sleeper.wait(LIMIT) == -signal.SIGTERM


def test_what_cannot_be_run_ends_as_a_shell_would_end_it(channel: Channel) -> None:
    said = bytearray()
    assert channel.start(["/nowhere/nothing"], stderr=said.extend).wait(LIMIT) == 127
    assert said == b"/nowhere/nothing: No such file or directory\n"
    assert channel.start(["/etc/passwd"]).wait(LIMIT) == 126


def test_a_process_left_behind_does_not_hold_the_command_open(channel: Channel) -> None:
    code, out, _ = sh(channel, "sleep 60 & echo $!")
    assert code == 0
    os.kill(int(out), signal.SIGKILL)


def test_a_signal_reaches_the_whole_process_group(channel: Channel) -> None:
    seen = bytearray()
    command = channel.start(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=seen.extend)
    while not seen.endswith(b"\n"):
        channel.step(None)
    with open(os.pidfd_open(int(seen))) as sleeper:
        command.signal(signal.SIGTERM)
        assert command.wait(LIMIT) == -signal.SIGTERM
        assert select.select([sleeper], [], [], LIMIT)[0]


def test_commands_run_side_by_side(channel: Channel) -> None:
    first_out, second_out = bytearray(), bytearray()
    first = channel.start(["cat"], stdin=b"1", stdout=first_out.extend)
    second = channel.start(["sh", "-c", "echo 2; exit 2"], stdout=second_out.extend)
    assert (second.wait(LIMIT), first.wait(LIMIT)) == (2, 0)
    assert first_out == b"1" and second_out == b"2\n"


def test_environment_and_folder_are_the_command_s_own(channel: Channel) -> None:
    out = bytearray()
    argv = ["sh", "-c", "echo $POTASH_TEST $PWD"]
    channel.start(argv, stdout=out.extend, env={"POTASH_TEST": "x"}, cwd="/").wait(LIMIT)
    assert out == b"x /\n"


def test_a_command_may_have_a_terminal_of_a_size_that_changes(channel: Channel) -> None:
    out = bytearray()
    reader, writer = os.pipe()
    with open(reader, "rb") as keys, open(writer, "wb", buffering=0) as typed:
        command = channel.start(
            ["sh", "-c", "stty size; read x; stty size; read y; tty"],
            stdin=keys,
            stdout=out.extend,
            terminal=(24, 80),
        )
        while b"24 80" not in out:
            channel.step(None)
        command.resize(50, 132)
        typed.write(b"\r")
        while b"50 132" not in out:
            channel.step(None)
        typed.write(b"\r")
        assert command.wait(LIMIT) == 0
    assert b"/dev/pts/" in out


def test_an_interrupt_typed_at_a_terminal_ends_the_command(channel: Channel) -> None:
    out = bytearray()
    reader, writer = os.pipe()
    with open(reader, "rb") as keys, open(writer, "wb", buffering=0) as typed:
        command = channel.start(["cat"], stdin=keys, stdout=out.extend, terminal=(24, 80))
        typed.write(b"line\r")
        # Once from the terminal's echo, once from the command.
        while out.count(b"line") < 2:
            channel.step(None)
        typed.write(b"\x03")
        assert command.wait(LIMIT) == -signal.SIGINT


def test_a_command_that_takes_too_long_is_told_apart_from_a_guest_that_hangs(
    channel: Channel,
) -> None:
    command = channel.start(["sleep", "60"])
    with pytest.raises(GuestTimeout, match="did not end within 0.2 seconds"):
        command.wait(0.2)
    command.signal(signal.SIGKILL)
    assert command.wait(LIMIT) == -signal.SIGKILL


def test_an_agent_that_stands_still_is_found_out() -> None:
    with agent_process() as (stream, process):
        channel = Channel(stream, life_limit=1.0)
        channel.greet(LIMIT)
        command = channel.start(["sleep", "60"])
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(GuestTimeout, match="stopped answering"):
            command.wait(LIMIT)
        process.send_signal(signal.SIGCONT)


def test_a_quiet_command_of_a_living_agent_is_waited_for() -> None:
    with local_channel(life_limit=0.5) as channel:
        assert channel.start(["sleep", "1.5"]).wait(LIMIT) == 0


def test_the_end_of_the_guest_ends_the_wait() -> None:
    with agent_process() as (stream, process):
        channel = Channel(stream)
        channel.greet(LIMIT)
        command = channel.start(["sleep", "60"])
        process.kill()
        with pytest.raises(GuestError, match="has ended"):
            command.wait(LIMIT)


def test_an_old_greeting_s_answer_is_not_taken_for_a_new_one_s() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(encode(Kind.HELLO, 0, b'{"nonce": "old"}'))
        with pytest.raises(GuestTimeout, match="showed no life"):
            Channel(ours).greet(0.1)


@pytest.mark.parametrize(
    "hostile",
    [
        b"\xff" * 64,
        encode(Kind.EXIT, 1, b"x"),
        encode(Kind.TAKEN, 1),
        encode(Kind.EXIT, 1, b"12345"),
    ],
)
def test_bytes_that_are_no_frames_of_ours_are_reported(hostile: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(hostile)
        with pytest.raises(GuestError, match="makes no sense"):
            Channel(ours).start(["true"]).wait(LIMIT)


@pytest.mark.parametrize("argv", [[], ["echo", "a\0b"]])
def test_a_command_that_cannot_be_said_is_refused_here(channel: Channel, argv: list[str]) -> None:
    with pytest.raises(ValueError, match="one word or more"):
        channel.start(argv)


def test_a_folder_that_does_not_exist_is_what_is_named(channel: Channel) -> None:
    said = bytearray()
    channel.start(["true"], cwd="/nowhere", stderr=said.extend).wait(LIMIT)
    assert said == b"/nowhere: No such file or directory\n"
