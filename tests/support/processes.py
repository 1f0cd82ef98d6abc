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


def name(pid: int) -> str:
    """What the process is called; nothing for one that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except GONE:
        return ""


def _numbers(file: Path) -> list[int]:
    try:
        return list(map(int, file.read_text().split()))
    except GONE:
        return []
