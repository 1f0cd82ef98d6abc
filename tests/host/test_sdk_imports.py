"""What starts often stays light: the SDK needs the standard library only, a device no numpy."""

import platform
import subprocess
import sys

import pytest

import potash_firmware
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.words import SMALLEST

OURS = {"potash", "nvme_spec", "csd_spec", "pyvfio_user", "potash_wire"}
TOO_HEAVY = {"asyncio", "ctypes", "email", "logging", "multiprocessing", "subprocess"}
SCRIPT = "import sys; before = set(sys.modules); {}; print(*set(sys.modules) - before)"


def imported_by(statements: str) -> set[str]:
    """The modules that some statements bring into a fresh process."""
    command = [sys.executable, "-c", SCRIPT.format(statements)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


def imported(module: str) -> set[str]:
    """The modules that `import module` brings into a fresh process."""
    return imported_by(f"import {module}")


@pytest.mark.parametrize("module", ["potash.sdk", "potash.sdk.ioctl", "potash.sdk.vfio_user"])
def test_the_sdk_imports_the_standard_library_and_the_specifications(module: str) -> None:
    packages = {name.partition(".")[0] for name in imported(module)}
    assert packages - OURS <= set(sys.stdlib_module_names)
    assert not packages & TOO_HEAVY


def test_potash_alone_has_the_sdk_and_its_version() -> None:
    script = "import potash, sys; before = 'potash.sdk' in sys.modules; potash.sdk.open;"
    script += "print(before, potash.__version__)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split() == ["False", potash_firmware.__version__]


def test_the_sdk_brings_a_transport_in_only_when_it_is_used() -> None:
    modules = imported("potash.sdk")
    assert "potash.sdk.vfio_user" not in modules
    assert "potash.sdk.ioctl" not in modules
    assert not any(name.startswith("pyvfio_user") for name in modules)


def test_the_sdk_brings_in_nothing_that_only_some_programs_need() -> None:
    """Making dataclasses takes longer than all else that the SDK does when it is imported."""
    command_sets = {
        "nvme_spec.computational",
        "nvme_spec.key_value",
        "nvme_spec.memory_commands",
    }
    namespaces = {
        "potash.sdk.compute_namespace",
        "potash.sdk.kv_namespace",
        "potash.sdk.memory_namespace",
    }
    assert not imported("potash.sdk") & (command_sets | namespaces | {"dataclasses", "inspect"})


@pytest.mark.parametrize("name", ["acc", "cp", "fault", "fw", "kv", "run", "slm"])
def test_a_light_command_brings_in_click_and_no_more(name: str) -> None:
    modules = imported(f"potash.cli.drive.{name}")
    packages = {module.partition(".")[0] for module in modules}
    assert packages - OURS - {"click"} <= set(sys.stdlib_module_names)
    assert not any(module.startswith(("potash.cli.device", "potash.vm")) for module in modules)


@pytest.mark.parametrize(
    "module",
    ["potash.cli.device.serve", "potash.cli.device.drives", "potash_firmware.apu.main"],
)
def test_a_device_starts_without_what_only_its_workers_need(module: str) -> None:
    packages = {name.partition(".")[0] for name in imported(module)}
    assert not packages & {"ai_edge_litert", "cffi", "email", "llvmlite", "numba", "numpy"}


def test_a_modelled_drive_needs_no_compiler_once_its_code_is_compiled() -> None:
    """numba and llvmlite take longer and more memory than all else."""
    Drive(SMALLEST).prepare()
    script = "from potash.cli.device.modelled_time import preload; preload()"
    heavy = {"cffi", "importlib.metadata", "llvmlite", "numba", "potash_firmware.ftl.page"}
    if platform.machine() != "x86_64":  # LLVM loads it there
        heavy -= {"llvmlite"}
    assert not imported_by(script) & heavy


def test_a_device_imports_nothing_that_only_some_devices_need() -> None:
    """Libraries and modules of guests, modelled drives, extensions, and configuration files."""
    libraries = {"difflib", "gzip", "hashlib", "importlib.metadata", "tempfile", "tomllib"}
    modules = {
        "potash.vm.guest",
        "potash.vm.packages",
        "potash.vm.qemu",
        "potash.vm.standstill",
        "potash_device.flash.profile",
        "potash_device.flash.profiles",
        "potash_firmware.extension_registry",
        "potash_firmware.native_programs",
    }
    assert not imported("potash.cli.device.serve") & (libraries | modules)


def test_a_device_imports_nothing_that_parses_or_runs_programs() -> None:
    machine = {"potash_firmware.bpf.elf", "potash_firmware.bpf.interpreter"}
    assert not imported("potash.cli.device.serve") & machine
