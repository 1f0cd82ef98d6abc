"""Processes of the APU die in every way; jobs fail, are told, and the next ones run.

Each test's board ends its APU and sees that nothing below it is left.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from csd_spec.descriptors import LogEntryType
from csd_spec.opcodes import IoOpcode, Operation
from csd_spec.status import StatusId
from potash_firmware.apu import main
from potash_firmware.apu.config import AcceleratorConfig, ConfigError, Limits, parse_descriptors
from potash_firmware.apu_process import ApuProcess
from support.apu import BUFFER, CONFIG, DEADLINE, Board, await_end, board, program
from support.bpf import call, exit_, insn, load, mov, store
from support.processes import children
from support.processes import descriptors as opened

PRINT = 1
TFLITE_VTA = 3

COPY_8 = program(load(6, 1), store(2, 6), mov(0, 7), exit_)
FOREVER = program(call(PRINT), insn(0x05, offset=-1), exit_)
CHATTER = program(call(PRINT), insn(0x05, offset=-2), exit_)
INFER = program(mov(3, 8), mov(4, 4), mov(5, 64), call(TFLITE_VTA), exit_)
"""Runs its input as a model of eight bytes, which is none."""


@pytest.fixture(scope="module")
def booted() -> Iterator[Board]:
    with board() as made:
        yield made


@pytest.fixture
def apu(booted: Board) -> Board:
    """As after power-on and enabled, with nothing in the logs that a test looks for."""
    booted.reset_controller()
    booted.ended.clear()
    booted.enable()
    for accelerator in (0, 3):
        booted.forget_log(accelerator)
    return booted


def loop(apu: Board, accelerator: int = 0, image: bytes = FOREVER) -> int:
    """Start a program that never ends, wait for its first line, and give its worker's pid."""
    apu.send_firmware(image, accelerator=accelerator)
    apu.send_data(b"looping\0", accelerator)
    assert apu.control(Operation.START, accelerator) == 0
    apu.until_so(lambda: LogEntryType.PROGRAM_OUTPUT in apu.log_types(accelerator))
    return apu.worker(accelerator)


def end(pid: int, number: signal.Signals) -> None:
    """End a process, which a test knows by its identifier, and wait until it is gone."""
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, number)
    await_end(pidfd)


def memory(fork_server: int) -> tuple[set[str], set[str]]:
    """What of the device's memory a fork server has open, and what of it it has mapped."""
    files = {one.removeprefix("/memfd:").split(" ")[0] for one in opened(fork_server)}
    lines = Path(f"/proc/{fork_server}/maps").read_text().splitlines()
    mapped = {line.partition("/memfd:")[2].split(" ")[0] for line in lines}
    device = {"potash-transfer", "potash-state", "media1", "potash-arena0", "potash-arena3"}
    return files & device, mapped & device


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_worker_that_dies_fails_its_job_and_the_next_one_runs(
    apu: Board, number: signal.Signals
) -> None:
    end(loop(apu), number)
    assert apu.wait().status == StatusId.FAILED
    (text,) = apu.log_texts(LogEntryType.PROCESS_LOST)
    assert number.name in text
    assert apu.run(COPY_8, b"ABCDEFGH").return_value == 7


def test_a_workers_death_touches_no_other_accelerator(apu: Board) -> None:
    victim = loop(apu)
    loop(apu, 3)
    end(victim, signal.SIGKILL)
    assert apu.wait().status == StatusId.FAILED
    assert apu.status(3).status == StatusId.RUNNING
    assert apu.control(Operation.STOP, 3) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_sent_to_the_whole_group_is_the_devices_alone(
    apu: Board, number: signal.Signals
) -> None:
    worker = loop(apu)
    below = [apu.process.pid, apu.fork_server(), worker]
    for pid in below:
        os.kill(pid, number)
    assert apu.status().status == StatusId.RUNNING
    assert apu.control(Operation.STOP) == 0  # kills the worker, which is there until then
    assert apu.log_types().count(LogEntryType.PROCESS_LOST) == 0
    assert [apu.process.pid, apu.fork_server()] == below[:2]


def test_every_process_says_which_it_is(apu: Board) -> None:
    apu.until_so(lambda: apu.has_worker(0) and apu.has_worker(3))
    pids = (apu.process.pid, apu.fork_server(), apu.worker(0), apu.worker(3))
    proc = [Path(f"/proc/{pid}") for pid in pids]
    assert [(item / "comm").read_text().strip() for item in proc] == [
        "potash-apu",
        "potash-fork-srv",
        "potash-worker0",
        "potash-worker3",
    ]
    assert all(b"accelerators" not in (item / "cmdline").read_bytes() for item in proc)


def test_workers_are_made_though_no_command_comes() -> None:
    with board() as apu:
        apu.until_so(lambda: len(children(apu.process.pid)) == 1)
        apu.until_so(lambda: apu.has_worker(0) and apu.has_worker(3))


def test_of_the_devices_memory_a_fork_server_has_the_accelerators_alone(apu: Board) -> None:
    """The first one is forked from the APU, which has all of it; the next one is not."""
    apu.run(COPY_8, b"ABCDEFGH")
    first = apu.fork_server()
    assert memory(first) == ({"potash-arena0", "potash-arena3"}, set())
    end(first, signal.SIGKILL)
    apu.until_so(lambda: children(apu.process.pid) not in ([], [first]))
    apu.run(COPY_8, b"ABCDEFGH")
    assert memory(apu.fork_server()) == ({"potash-arena0", "potash-arena3"}, set())


def test_a_fork_server_imports_what_models_take_when_a_second_worker_does() -> None:
    """One that does so for the first would do it twice on a drive that runs one model."""

    def imported() -> bool:
        opened(fork_server)  # or the test is skipped
        return "litert" in Path(f"/proc/{fork_server}/maps").read_text()

    with board() as apu:
        assert apu.run(INFER, b"no model").status == StatusId.FAILED
        fork_server, worker = apu.fork_server(), apu.worker(0)
        assert not imported()
        end(worker, signal.SIGKILL)
        apu.until_so(lambda: apu.workers(0) not in ([], [worker]))
        assert apu.run(INFER, b"no model").status == StatusId.FAILED
        apu.until_so(imported)
        assert apu.fork_server() == fork_server


def test_an_idle_worker_that_dies_fails_no_job(apu: Board) -> None:
    assert apu.run(COPY_8, b"ABCDEFGH").status == StatusId.DONE
    before = apu.worker(0)
    end(before, signal.SIGKILL)
    apu.until_so(lambda: apu.workers(0) not in ([], [before]))
    assert apu.status().status == StatusId.DONE
    assert apu.run(COPY_8, b"ABCDEFGH").status == StatusId.DONE
    assert LogEntryType.PROCESS_LOST not in apu.log_types()


def test_a_fork_server_that_dies_takes_its_workers_along_and_is_replaced(apu: Board) -> None:
    worker = os.pidfd_open(loop(apu))
    end(apu.fork_server(), signal.SIGKILL)
    await_end(worker)
    assert apu.wait().status == StatusId.FAILED
    assert LogEntryType.PROCESS_LOST in apu.log_types()
    assert apu.run(COPY_8, b"ABCDEFGH").return_value == 7


def test_a_fork_server_that_hangs_is_ended_and_replaced(apu: Board) -> None:
    loop(apu)
    fork_server = apu.fork_server()
    os.kill(fork_server, signal.SIGSTOP)
    assert apu.control(Operation.STOP) == 0
    assert apu.status().status == StatusId.STOPPED
    assert apu.run(COPY_8, b"ABCDEFGH").return_value == 7
    assert apu.fork_server() != fork_server


def test_a_stop_while_workers_are_still_being_prepared_is_answered() -> None:
    with board() as apu:  # nothing has waited for a worker yet
        apu.enable()
        apu.send_firmware(FOREVER)
        apu.send_data(b"looping\0")
        assert apu.control(Operation.START) == 0
        assert apu.control(Operation.STOP) == 0
        assert apu.status().status == StatusId.STOPPED
        assert apu.run(COPY_8, b"ABCDEFGH").return_value == 7


# Limits


def test_a_program_may_execute_so_many_instructions() -> None:
    with board(replace(CONFIG, limits=Limits(instructions=1000))) as apu:
        assert apu.run(FOREVER, b"looping\0").status == StatusId.FAILED
        assert apu.log_types()[-1] == LogEntryType.LIMIT_EXCEEDED
        assert apu.run(COPY_8, b"ABCDEFGH").status == StatusId.DONE


def test_a_job_may_take_so_long() -> None:
    with board(replace(CONFIG, limits=Limits(seconds=0.2))) as apu:
        # The first worker takes longer than this to be there, so what is measured is the limit.
        assert apu.run(FOREVER, b"looping\0").status == StatusId.FAILED
        assert LogEntryType.LIMIT_EXCEEDED in apu.log_types()
        assert LogEntryType.PROCESS_LOST not in apu.log_types()
        assert apu.run(FOREVER, b"looping\0").status == StatusId.FAILED


def test_a_program_that_prints_without_end_holds_up_nobody(apu: Board) -> None:
    loop(apu, image=CHATTER)
    assert apu.run(COPY_8, b"ABCDEFGH", accelerator=3).status == StatusId.DONE
    assert apu.control(Operation.STOP) == 0
    page = apu.log()
    assert len(page.entries) == apu.config.limits.log_entries and page.lost
    assert apu.status().status == StatusId.STOPPED


# The APU itself


def test_what_a_host_configured_survives_the_apu(apu: Board) -> None:
    apu.media[1].view[4096:4104] = b"on media"
    assert apu.send_firmware(COPY_8, 4) == 0
    assert apu.control(Operation.SELECT_FIRMWARE, firmware=4) == 0
    assert apu.local(IoOpcode.LOCAL_INPUT, 1, 1) == 0
    assert apu.local(IoOpcode.LOCAL_OUTPUT, 2, 1) == 0
    assert apu.send_data(b"in buffer 3 ", 3) == 0
    assert apu.send_firmware(COPY_8, accelerator=3) == 0
    apu.kill()
    apu.boot()
    assert apu.control(Operation.START, firmware=0xFFFF_FFFF) == 0
    assert apu.wait().produced == 4096
    assert bytes(apu.media[1].view[8192:8200]) == b"on media"
    assert apu.control(Operation.START, 3) == 0
    assert apu.wait(3).consumed == 12
    assert apu.read_data(8, 3) == b"in buffe"


def test_start_is_refused_where_the_namespace_has_gone_meanwhile() -> None:
    uses = (
        (0, IoOpcode.LOCAL_INPUT, LogEntryType.INVALID_INPUT_BUFFER),
        (3, IoOpcode.LOCAL_OUTPUT, LogEntryType.INVALID_OUTPUT_BUFFER),
        (5, IoOpcode.GRANT_LOCAL_STORAGE, LogEntryType.ACCELERATOR_ERROR),
    )
    accelerators = tuple(AcceleratorConfig(one, BUFFER, BUFFER) for one, _, _ in uses)
    with board(replace(CONFIG, accelerators=accelerators)) as apu:
        apu.enable()
        for accelerator, opcode, _ in uses:
            assert apu.send_firmware(COPY_8, accelerator=accelerator) == 0
            assert apu.send_data(b"ABCDEFGH", accelerator) == 0
            assert apu.local(opcode, 0, 1, accelerator) == 0
        apu.kill()
        apu.config = replace(apu.config, namespaces=())
        apu.boot()
        for accelerator, _, kind in uses:
            assert apu.control(Operation.START, accelerator) == 0x7C3
            assert apu.log_texts(kind, accelerator) == ["namespace 1 is not there any more"]
            assert apu.status(accelerator).status == StatusId.IDLE


def test_a_finished_job_stays_finished_over_a_restart(apu: Board) -> None:
    before = apu.run(COPY_8, b"ABCDEFGH")
    apu.kill()
    apu.boot()
    assert apu.status() == before
    assert apu.read_data(8) == b"ABCDEFGH"
    assert not apu.ended


def test_a_job_that_the_apu_dies_under_has_failed(apu: Board) -> None:
    loop(apu)
    apu.kill()
    apu.boot()
    apu.until(lambda: bool(apu.ended))
    assert apu.status().status == StatusId.FAILED
    assert apu.log_types() == [LogEntryType.PROCESS_LOST]
    apu.ended.clear()
    assert apu.run(COPY_8, b"ABCDEFGH").return_value == 7


def test_a_controller_reset_is_remembered_over_a_restart(apu: Board) -> None:
    apu.send_firmware(COPY_8)
    apu.reset_controller()
    apu.kill()
    apu.boot()
    assert apu.control(Operation.SELECT_FIRMWARE) == 0x7C0
    apu.enable()
    assert apu.control(Operation.SELECT_FIRMWARE) == 0x7C2


def test_jobs_and_deaths_leave_no_descriptor_behind(apu: Board) -> None:
    def descriptors() -> list[int]:
        apu.until_so(lambda: apu.has_worker(0) and apu.has_worker(3))
        return [len(opened(pid)) for pid in (apu.process.pid, apu.fork_server())]

    apu.run(COPY_8, b"ABCDEFGH")
    before = descriptors()
    for _ in range(3):
        assert apu.run(COPY_8, b"ABCDEFGH").status == StatusId.DONE
        end(loop(apu), signal.SIGKILL)
        apu.wait()
        apu.reset_controller()
        apu.enable()
        apu.forget_log()
    # A checker that has answered may be there for a moment.
    apu.until_so(lambda: all(now <= then for now, then in zip(descriptors(), before, strict=True)))


def test_malformed_messages_are_dropped(apu: Board) -> None:
    whole = b"\x01\x00\x91" + bytes(45)
    for junk in (b"\xff", b"\x01", bytes(48), whole[:-1], whole[:-8] + b"\xff" * 8, bytes(4000)):
        os.write(apu.port.fileno(), junk)
    assert apu.run(COPY_8, b"ABCDEFGH").return_value == 7


def test_an_answer_to_a_write_back_that_nobody_asked_for_is_dropped(apu: Board) -> None:
    os.write(apu.port.fileno(), b"\x03\0\0\0" + b"\x63\0\0\0" + bytes(4))
    assert apu.run(COPY_8, b"ABCDEFGH").return_value == 7


def test_the_apu_ends_with_the_rpu_even_while_programs_run(apu: Board) -> None:
    loop(apu)
    # The board's close, behind this, ends the mailbox and waits for every process.


@pytest.mark.parametrize(
    ("fds", "said"),
    [
        ("mailbox=0", "no descriptor was given for state, transfer, media1"),
        ("mailbox", "'mailbox' does not give a name"),
    ],
)
def test_what_an_apu_cannot_start_with_is_named(fds: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        main.run(parse_descriptors(fds), CONFIG)


def test_an_apu_that_cannot_start_says_why_in_a_sentence() -> None:
    config = CONFIG.share()
    others = "state=0,transfer=0,media1=0,arena0=0,arena3=0"
    for fds, said in (
        (f"mailbox=0,config={config}", "descriptor 0 is no mailbox"),
        ("mailbox=0,config=0", "the configuration cannot be read"),
        ("mailbox=0", "the configuration cannot be read"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "potash_firmware.apu", "--fds", f"{fds},{others}"],
            pass_fds=[config],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"apu: {said}")
        assert done.stderr.count("\n") == 1
    os.close(config)


PARENT_DEATH_SIGNAL = """
import ctypes, os, runpy, sys, types

def main():
    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(found))  # PR_GET_PDEATHSIG (prctl(2))
    print(found.value, sys.argv[1:], "potash_firmware.apu.service" in sys.modules)

stub = sys.modules["potash_firmware.apu.main"] = types.ModuleType("main")
stub.main = main
sys.argv[1:] = ["--parent", sys.argv[1] or str(os.getppid()), "--fds", ""]
runpy.run_module("potash_firmware.apu", run_name="__main__")
"""


@pytest.mark.parametrize(("parent", "said"), [("", "9 ['--fds', ''] False\n"), ("1", "")])
def test_an_apu_is_tied_to_its_device_before_it_imports_anything(parent: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT_DEATH_SIGNAL, parent],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.stdout == said, done.stderr
    assert done.returncode == (0 if said else 1)


def test_the_device_says_which_process_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    ApuProcess(CONFIG, {}).start(7)
    at = started[0].index("--parent")
    assert started[0][at - 1 : at + 2] == ["potash_firmware.apu", "--parent", str(os.getpid())]
