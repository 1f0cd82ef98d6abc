"""The pytest plugin, as somebody else's tests use it: in pytest processes of their own."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys

import pytest

from support.docs import ROOT, SOURCES, blocks

LIMIT = 120.0

TESTS = """
import pytest

pytestmark = pytest.mark.potash(size="8M", serial="MODULE")


def test_that_fails_with_a_module_s_options(potash_device):
    assert potash_device.capacity == 8 << 20
    assert potash_device.identify().sn == "MODULE"
    assert potash_device.read(0, 1) == b"something else"


@pytest.mark.potash(size="16M", accelerators=["1M:64K", "2M"], faults=["io read lost count=1"])
def test_s_own_are_nearer(potash_device):
    assert potash_device.capacity == 16 << 20
    assert potash_device.identify().sn == "MODULE"
    sizes = [(one.input_size, one.output_size) for one in potash_device.accelerators()]
    assert sizes == [(1 << 20, 64 << 10), (2 << 20, 2 << 20)]
    (fault,) = potash_device.faults()
    potash_device.clear_faults()
    assert potash_device.faults() == []
    assert potash_device.add_fault(fault) == 2


def test_two_at_a_time(potash_device_factory, tmp_path):
    one = potash_device_factory(namespaces=["4M:512", "8M"], media=tmp_path / "folder")
    other = potash_device_factory(serial="OTHER")
    assert one.active_namespaces() == [1, 2]
    assert one.socket != other.socket
    other.kill()
    assert len(one.read(0, 1)) == 512
    one.close()
    assert one.process.poll() == 0
    assert len(potash_device_factory(media=tmp_path / "folder").read(0, 1)) == 512


@pytest.mark.potash("64M")
def test_with_an_option_without_a_name(potash_device):
    pass


@pytest.mark.potash(fauls=["io read lost"])
def test_with_a_misspelt_option(potash_device):
    pass


def test_misspelt_options_of_the_factories(potash_device_factory, potash_guest_factory):
    with pytest.raises(TypeError, match="'sise'; did you mean 'size'?"):
        potash_device_factory(sise="1M")
    for options in ({"cores": 2}, {"more": [{"cores": 2}]}):
        with pytest.raises(TypeError, match="'cores'; potash serve --help lists them"):
            potash_guest_factory(**options)


@pytest.mark.potash(faults=["io reed lost"])
def test_with_a_fault_that_is_none(potash_device):
    pass
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of these tests, those of the page and those of the example."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "test_theirs.py").write_text(TESTS)
    (folder / "test_page.py").write_text("\n\n".join(blocks("testing.md", "python")))
    scratch = folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA"]
    command += ["--strict-markers", "-k", "not linux", f"--basetemp={folder / 'base'}"]
    done = subprocess.run(
        [*command, str(folder), str(ROOT / "examples" / "faults")],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(SOURCES)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert os.listdir(scratch) == []
    return done.stdout


def outcomes(said: str, file: str) -> dict[str, str]:
    """How the tests of a file have ended, by their names."""
    return {
        name: how for how, name in re.findall(rf"^([A-Z]+) \S*{file}::(\w+)", said, re.MULTILINE)
    }


def test_the_fixtures_do_as_they_are_told(said: str) -> None:
    assert outcomes(said, "test_theirs.py") == {
        "test_that_fails_with_a_module_s_options": "FAILED",
        "test_s_own_are_nearer": "PASSED",
        "test_two_at_a_time": "PASSED",
        "test_with_an_option_without_a_name": "ERROR",
        "test_with_a_misspelt_option": "ERROR",
        "test_misspelt_options_of_the_factories": "PASSED",
        "test_with_a_fault_that_is_none": "ERROR",
    }
    assert "unexpected keyword argument 'fauls'; did you mean 'faults'?" in said
    assert "== b'something else'" in said
    assert "takes options by their names" in said
    assert "there is no opcode reed" in said


@pytest.mark.parametrize(("file", "tests"), [("test_store.py", 6), ("test_page.py", 3)])
def test_the_example_and_what_the_page_shows_pass(said: str, file: str, tests: int) -> None:
    assert list(outcomes(said, file).values()) == ["PASSED"] * tests


def test_pytest_pays_for_nothing_that_is_not_asked_for() -> None:
    script = "import sys, pytest; before = set(sys.modules); import potash.testing.plugin; "
    script += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.split() == ["potash", "potash.testing", "potash.testing.plugin"]


def test_potash_itself_needs_no_pytest() -> None:
    wanted = importlib.metadata.requires("potash") or []
    assert [one for one in wanted if one.startswith("pytest") and "extra ==" not in one] == []
    script = (
        "import sys, potash.testing; potash.testing.booted_device; print('pytest' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout == "False\n"


def test_pytest_finds_the_plugin_where_potash_is_installed() -> None:
    (entry,) = (
        one for one in importlib.metadata.entry_points(group="pytest11") if one.name == "potash"
    )
    assert entry.value == "potash.testing.plugin"


def test_an_unknown_name_is_an_attribute_error() -> None:
    import potash.testing

    with pytest.raises(AttributeError, match="has no nothing"):
        _ = potash.testing.nothing
