"""What Linux tells of processes (proc(5)); one that ends meanwhile is as good as gone."""

import os
from pathlib import Path

import pytest

GONE = (FileNotFoundError, ProcessLookupError)


def children(pid: int) -> list[int]:
    """The processes that the threads of `pid` have started."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += _numbers(task / "children")
    except GONE:
        pass
    return found


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, the nearest first."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def runs(pid: int) -> bool:
    """Whether the process is there and has not ended: no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except GONE:
        return False


def name(pid: int) -> str:
    """What the process is called; nothing for one that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except GONE:
        return ""


def descriptors(pid: int) -> list[str]:
    """What a process has open. One that is not dumpable shows that to root alone: the test is
    skipped."""
    try:
        return [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.exists()]
    except PermissionError:
        pytest.skip("only root sees what a process that is not dumpable has open")


def anonymous_memory(pid: int) -> int:
    """Bytes of a process's own memory that are resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


def _numbers(file: Path) -> list[int]:
    try:
        return list(map(int, file.read_text().split()))
    except GONE:
        return []
