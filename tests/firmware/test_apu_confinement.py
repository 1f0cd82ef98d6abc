"""Code that controls a worker: everything that it tries is refused, and jobs go on as
before."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from csd_spec import fields
from csd_spec.descriptors import LogEntryType, encode_arguments
from csd_spec.opcodes import IoOpcode, Operation
from csd_spec.status import StatusId, VendorStatus
from nvme_spec.status import Status
from potash.models import networks
from potash_device.vta.fast.simulator import DIVIDED_AT
from potash_firmware import confinement
from potash_firmware.apu import compile_service
from potash_firmware.apu.config import AcceleratorConfig
from potash_firmware.bpf.native import compiler, lowering
from potash_firmware.bpf.native.engine import name_of
from potash_firmware.confinement import landlock, seccomp
from potash_firmware.confinement.system_calls import NUMBERS
from potash_firmware.mailbox.messages import Reply
from potash_firmware.tflite.runtime import infer
from support import attacks
from support.apu import CONFIG, Board, board, program
from support.bpf import call, exit_, insn, load, mov, store
from support.graph_builder import GraphBuilder
from support.processes import children, descendants, name

CONFINING = pytest.mark.skipif(
    bool(confinement.missing()), reason="this kernel cannot confine: no seccomp or no Landlock"
)
MEMORY = 1 << 30

PRINT = 1
FOREVER = program(call(PRINT), insn(0x05, offset=-1), exit_)
ASTRAY = mov(1, 8) + load(0, 1) + exit_

PRIVILEGED = pytest.mark.skipif(os.geteuid() != 0, reason="only root sees what a worker has")


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A board whose programs have a helper that attacks."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copy(attacks.__file__, folder / "loose_in_a_worker.py")
    information = folder / "loose-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: loose\nVersion: 1\n")
    (information / "entry_points.txt").write_text(
        "[potash.helpers]\nattack = loose_in_a_worker:ATTACK\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patch.setenv("USERS_TOKEN", "secret")
        limits = replace(CONFIG.limits, memory=MEMORY)
        with board(replace(CONFIG, limits=limits)) as made:
            yield made


@pytest.fixture
def apu(booted: Board) -> Board:
    booted.reset_controller()
    booted.ended.clear()
    assert booted.enable() == 0
    booted.forget_log()
    return booted


def attack(apu: Board, what: str) -> int:
    """What came of it: an error's number, 0 where it got through; a signal's that ended the worker,
    negated."""
    image = program(mov(1, attacks.EVERYTHING.index(what)), call(attacks.ATTACK.number), exit_)
    status = apu.run(image)
    if status.status == StatusId.DONE:
        return status.descriptors[0].amount
    (text,) = apu.log_texts(LogEntryType.PROCESS_LOST)
    return -signal.Signals[text.partition("ended by ")[2].split()[0].rstrip(",")]


@CONFINING
@pytest.mark.parametrize("what", attacks.ATTACKS)
def test_a_worker_cannot(apu: Board, what: str) -> None:
    assert apu.grant(0, 1) == 0
    came = attack(apu, what)
    assert came in (-signal.SIGSYS, errno.EPERM, errno.EACCES, errno.ENOTTY, errno.EBADF)


@pytest.mark.parametrize("what", attacks.ALLOWED)
def test_a_worker_can(apu: Board, what: str) -> None:
    assert attack(apu, what) == 0


@PRIVILEGED
def test_a_worker_has_the_descriptors_and_the_memory_of_its_accelerator_alone(apu: Board) -> None:
    assert attack(apu, "start a thread") == 0
    worker = Path(f"/proc/{apu.worker(0)}")
    opened = sorted(os.readlink(one) for one in (worker / "fd").iterdir())
    memories = [name.removesuffix(" (deleted)") for name in opened if "memfd" in name]
    assert set(memories) == {"/memfd:potash-arena0", "/memfd:potash-exchange"}
    assert len([name for name in opened if name.startswith("socket:")]) == 2
    mapped = {
        line.split()[5] for line in (worker / "maps").read_text().splitlines() if "/memfd" in line
    }
    assert mapped == {"/memfd:potash-arena0", "/memfd:potash-exchange"}
    status = dict(line.split(":\t") for line in (worker / "status").read_text().splitlines())
    assert status["NoNewPrivs"] == "1"
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0


@PRIVILEGED
def test_a_worker_has_limits_and_yields_to_others(apu: Board) -> None:
    assert attack(apu, "start a thread") == 0
    pid = apu.worker(0)
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    found = {line[:26].strip(): tuple(line[26:].split()[:2]) for line in lines}
    seconds = int(2 * CONFIG.limits.seconds)
    assert found["Max cpu time"] == (str(seconds), str(seconds + 1))  # SIGXCPU, SIGKILL
    for kind, most in (
        ("Max data size", MEMORY),
        ("Max file size", 1 << 30),
        ("Max processes", 1 << 14),
        ("Max open files", 192),
        ("Max core file size", 0),
        ("Max locked memory", 0),
    ):
        soft, hard = map(int, found[kind])
        assert soft == hard <= most, kind
    assert os.getpriority(os.PRIO_PROCESS, pid) >= 10


@PRIVILEGED
def test_a_job_brings_media_that_it_was_granted_to_be_read_alone(apu: Board) -> None:
    assert apu.grant(0, 1, writable=True) == 0
    assert apu.send_firmware(FOREVER) == apu.send_data(b"looping\0") == 0
    assert apu.control(Operation.START) == 0
    apu.until_so(lambda: LogEntryType.PROGRAM_OUTPUT in apu.log_types())
    modes = media_of(apu.worker(0))
    assert apu.control(Operation.STOP) == 0
    assert modes == [os.O_RDONLY]


def media_of(pid: int) -> list[int]:
    """How a process has media open."""
    process = Path(f"/proc/{pid}")
    found = [one.name for one in (process / "fd").iterdir() if "media" in os.readlink(one)]
    flags = [(process / "fdinfo" / one).read_text().split("flags:\t")[1] for one in found]
    return [int(one.split()[0], 8) & os.O_ACCMODE for one in flags]


def test_too_much_memory_fails_the_job_that_asked_for_it(apu: Board) -> None:
    image = program(
        mov(1, attacks.EVERYTHING.index("take memory")), call(attacks.ATTACK.number), exit_
    )
    assert apu.run(image).status == StatusId.FAILED
    (text,) = apu.log_texts(LogEntryType.LIMIT_EXCEEDED)
    assert "memory" in text


def test_a_library_that_aborts_fails_its_job(apu: Board) -> None:
    assert attack(apu, "abort") == -signal.SIGABRT


def test_a_worker_that_hangs_up_and_stays_is_ended_and_no_other(apu: Board) -> None:
    apu.until_so(lambda: apu.has_worker(0) and apu.has_worker(3))
    fork_server, other = apu.fork_server(), apu.worker(3)
    assert attack(apu, "hang up and stay") == -signal.SIGKILL
    assert (apu.fork_server(), apu.worker(3)) == (fork_server, other)


def bomb() -> bytes:
    """A model of some hundred bytes that fills a tensor of 1.5 GiB when it is loaded."""
    graph = GraphBuilder()
    shape = graph.constant(np.array([3 << 27], np.int32))
    value = graph.constant(np.array(1, np.int32))
    filled = graph.operator(
        schema.BuiltinOperator.FILL, (shape, value), graph.tensor((1,), dtype=np.int32)
    )
    x = graph.tensor((1,), dtype=np.int32)
    y = graph.operator(schema.BuiltinOperator.ADD, (x, x), graph.tensor((1,), dtype=np.int32))
    return graph.finish((x,), (y, filled))


def test_a_model_that_asks_for_too_much_memory_fails_its_job(apu: Board) -> None:
    example = Path(__file__).parents[2] / "examples" / "add" / "program.o"
    model = bomb()
    assert len(model) < 1024
    assert apu.send_firmware(example.read_bytes()) == 0
    data = model + bytes(8)
    assert apu.send_data(data + bytes(-len(data) % 4)) == 0
    lengths = [struct.pack("<I", length) for length in (len(model), 64)]
    assert apu.control(Operation.START, arguments=encode_arguments(lengths)) == 0
    assert apu.wait().status == StatusId.FAILED
    reasons = [text for kind in (*LogEntryType,) for text in apu.log_texts(kind)]
    assert any("memory" in text for text in reasons), reasons


def test_a_worker_executes_a_model_in_several_threads() -> None:
    example = Path(__file__).parents[2] / "examples" / "add" / "program.o"
    model = networks.make("resnet18-c1")
    inputs = np.random.default_rng(9).integers(-128, 128, 224 * 224 * 3, np.int8).tobytes()
    output = memoryview(bytearray(112 * 112 * 64))
    assert infer(model, inputs, output, delegate=None, reference=True) == len(output)
    buffers = AcceleratorConfig(0, 1 << 20, 1 << 20)
    lengths = [struct.pack("<I", length) for length in (len(model), len(output))]
    with board(replace(CONFIG, accelerators=(buffers,), vta_threads=3)) as apu:
        assert apu.enable() == 0
        assert apu.send_firmware(example.read_bytes()) == 0
        data = model + inputs
        data += bytes(-len(data) % 4)
        for at in range(0, len(data), 1 << 16):
            assert apu.send_data(data[at : at + (1 << 16)], offset=at) == 0
        threads = []
        for _ in range(DIVIDED_AT + 1):
            assert apu.control(Operation.START, arguments=encode_arguments(lengths)) == 0
            assert apu.wait().status == StatusId.DONE
            for at in range(0, len(output), 1 << 16):
                piece = output[at : at + (1 << 16)]
                assert apu.read_data(len(piece), offset=at) == piece
            if os.geteuid() == 0:
                threads.append(len(os.listdir(f"/proc/{apu.worker(0)}/task")))
                limits = Path(f"/proc/{apu.worker(0)}/limits").read_text().splitlines()
                (line,) = (one for one in limits if one.startswith("Max cpu time"))
                assert int(line.split()[3]) == 3 * int(2 * CONFIG.limits.seconds)
        # The stream is divided when it has run for some times.
        assert not threads or threads[-1] - threads[0] >= 2


def test_the_numbers_are_those_of_libseccomp() -> None:
    found_name = ctypes.util.find_library("seccomp")
    if found_name is None:
        pytest.skip("there is no libseccomp to compare with")
    library = ctypes.CDLL(found_name)
    for column, machine in enumerate(seccomp.MACHINES.values()):
        for call_name, numbers in NUMBERS.items():
            found = library.seccomp_syscall_resolve_name_arch(machine.audit, call_name.encode())
            # Those that a machine lacks have negative numbers there.
            assert numbers[column] == (found if found >= 0 else None), (call_name, machine)


def test_what_a_kernel_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "supported", lambda: False)
    monkeypatch.setattr(landlock, "version", lambda: 0)
    first, second = confinement.missing()
    assert first.startswith("seccomp is missing: ")
    assert second.startswith("Landlock is missing: ")


UNFILTERED = """
import os
from potash_firmware import confinement
from potash_firmware.confinement import landlock, seccomp
seccomp.supported = lambda: False
landlock.version = lambda: 0
confinement.confine(confinement.Bounds(memory=1 << 30, seconds=5))
print(open("/proc/self/status").read(), open("/proc/self/limits").read())
"""


def test_without_filters_the_other_measures_are_in_force() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNFILTERED], capture_output=True, text=True, timeout=30, check=True
    )
    status = dict(line.split(":\t") for line in done.stdout.splitlines() if ":\t" in line)
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "0"
    # An ordinary user cannot empty the bounding set, of which no new privileges come anyway.
    kinds = ("Inh", "Prm", "Eff", "Amb", *(("Bnd",) if os.geteuid() == 0 else ()))
    assert {int(status[f"Cap{kind}"], 16) for kind in kinds} == {0}
    limits = {line[:26].strip(): line[26:].split()[:1] for line in done.stdout.splitlines()}
    assert limits["Max data size"] == [str(1 << 30)]
    assert limits["Max cpu time"] == ["5"]
    assert limits["Max core file size"] == ["0"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root enters what others have closed")
def test_folders_that_root_cannot_enter_without_capabilities_are_known(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "packages"
    folder.mkdir(parents=True)
    for closed in (folder, folder.parent):
        assert confinement.stay_readable([folder, folder / "absent"])
        os.chown(closed, 65534, 65534)
        closed.chmod(0o700)
        assert not confinement.stay_readable([folder])
        closed.chmod(0o755)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may trace any process")
def test_no_process_of_the_apu_can_be_looked_into(apu: Board) -> None:
    assert attack(apu, "start a thread") == 0
    processes = [apu.process.pid, *descendants(apu.process.pid)]
    assert len(processes) >= 3  # the APU, its fork server, a worker
    for pid in processes:
        with pytest.raises(PermissionError):
            Path(f"/proc/{pid}/auxv").read_bytes()


def test_a_program_is_linked_by_another_process_while_others_are_served(apu: Board) -> None:
    """The service answers commands between a program's arrival and the verdict on it."""
    image = program(*[mov(0, 1)] * 60_000, exit_)
    cdws = fields.FirmwareTransfer(len(image) // 4, 0, 0, 0).encode()
    apu.buffers.slot(7)[: len(image)] = image
    sent = apu.send(False, IoOpcode.SEND_FIRMWARE, cdws, slot=7, length=len(image))
    assert apu.status().status == StatusId.IDLE
    assert not apu.is_answered(sent)
    reply = apu.answer(sent)
    assert isinstance(reply, Reply) and reply.status == 0


def test_a_program_whose_linker_is_lost_is_refused_and_others_are_not(apu: Board) -> None:
    image = program(*[mov(0, 1)] * 60_000, exit_)
    cdws = fields.FirmwareTransfer(len(image) // 4, 0, 0, 0).encode()
    apu.buffers.slot(7)[: len(image)] = image
    fork_server = apu.fork_server()
    os.kill(fork_server, signal.SIGSTOP)
    sent = apu.send(False, IoOpcode.SEND_FIRMWARE, cdws, slot=7, length=len(image))
    os.kill(fork_server, signal.SIGKILL)
    reply = apu.answer(sent)
    assert isinstance(reply, Reply) and reply.status == VendorStatus.FIRMWARE_REFUSED
    assert "was lost" in apu.log_texts(LogEntryType.ACCELERATOR_ERROR)[0]
    assert apu.run(program(mov(0, 3), exit_)).descriptors[0].amount == 3


def test_a_reset_ends_the_wait_for_a_linker(apu: Board) -> None:
    image = program(*[mov(0, 1)] * 60_000, exit_)
    cdws = fields.FirmwareTransfer(len(image) // 4, 0, 0, 0).encode()
    apu.buffers.slot(7)[: len(image)] = image
    sent = apu.send(False, IoOpcode.SEND_FIRMWARE, cdws, slot=7, length=len(image))
    apu.reset_controller()
    reply = apu.answer(sent)
    assert isinstance(reply, Reply) and reply.status == Status.ABORT_REQUESTED
    assert apu.enable() == 0
    assert apu.read_firmware(64)[0] == VendorStatus.INVALID_FIRMWARE


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the board below compiles, and one program that is compiled without checks: it loads from
    the address 8."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as gullible:
        gullible.setenv("XDG_CACHE_HOME", str(folder))
        gullible.setattr(lowering, "outside", lambda *_: "false")
        compiler.OBJECTS.keep(name_of(ASTRAY, 0), compiler.compile_program(ASTRAY, 0))
    return folder / "potash" / "bpf"


@pytest.fixture(scope="module")
def compiles(cache: Path) -> Iterator[Board]:
    """A board that keeps what it compiles apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache.parents[1]))
        with board() as made:
            yield made


def test_what_is_compiled_for_a_worker_is_kept_under_its_program_s_name(
    compiles: Board, cache: Path
) -> None:
    """By a process that no program has seen: the worker itself writes nothing there."""
    code = mov(0, 12) + exit_
    assert compiles.run(program(code)).return_value == 12
    compiles.until_so((cache / f"{name_of(code, 0)}.o").exists)
    assert compiler.OBJECTS.load(name_of(code, 0)) == compiler.compile_program(code, 0)


def test_an_access_that_is_wrongly_proven_ends_its_job_and_not_its_worker(compiles: Board) -> None:
    """The worker is given code without checks."""
    right = program(mov(0, 12) + exit_)
    assert compiles.run(right).return_value == 12
    worker = compiles.worker(0)
    assert compiles.run(program(ASTRAY)).status == StatusId.FAILED
    (text,) = compiles.log_texts(LogEntryType.MEMORY_FAULT)
    assert "0x8 unchecked" in text
    assert compiles.run(right).return_value == 12
    assert compiles.worker(0) == worker


def compiling(board: Board) -> set[int]:
    """The parents of compilers."""
    found = (pid for pid in children(board.fork_server()) if name(pid) == "potash-fork-srv")
    return {pid for pid in found if children(pid)}


def yields(pid: int) -> bool:
    """Whether the process has a lower priority than this one."""
    return os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)


def test_compilers_that_nobody_waits_for_any_more_do_not_pile_up(compiles: Board) -> None:
    """A host that stops its jobs while they are compiled could take all memory with them."""
    apu, seen = compiles, set[int]()
    slow = program((load(6, 1) + insn(0x0F, 6, 7) + store(2, 6)) * 1500, mov(0, 1), exit_)
    assert apu.enable() == apu.send_firmware(slow) == apu.send_data(bytes(8)) == 0
    for _ in range(len(CONFIG.accelerators) + 2):
        assert apu.control(Operation.START) == 0
        apu.until_so(lambda: bool(compiling(apu) - seen))
        apu.until_so(lambda: all(map(yields, compiling(apu))))
        for pid in compiling(apu) - seen:
            os.kill(pid, signal.SIGSTOP)
        seen.update(compiling(apu))
        assert apu.control(Operation.STOP) == 0
    apu.until_so(lambda: len(compiling(apu)) <= len(CONFIG.accelerators))


def test_what_a_compiler_said_before_it_was_ended_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_short(fd: int, data: bytes) -> None:
        os.write(fd, data[:3])
        os.abort()

    monkeypatch.setattr(compile_service, "_write", cut_short)
    handler = compile_service.Handler(
        lambda *_: b"machine code", lambda *_: (compiler.OBJECTS, "name")
    )
    assert compile_service._run_compiler(handler, CONFIG, b"", 0) == (
        True,
        b"the compiler was ended by SIGABRT",
    )
