"""What Linux tells of processes (proc(5)); one that ends meanwhile is as good as gone."""

from pathlib import Path

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


def has_mapped(pid: int, what: str) -> bool:
    """Whether `what` stands in the process's memory map."""
    try:
        return what in Path(f"/proc/{pid}/maps").read_text()
    except GONE:
        return False


def _numbers(file: Path) -> list[int]:
    try:
        return list(map(int, file.read_text().split()))
    except GONE:
        return []
