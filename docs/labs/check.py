"""Check what somebody has made of a lab: python docs/labs/check.py LAB FILE."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

LABS = {
    "vendor-command": "vendor_command",
    "schedule": "schedule",
    "garbage-collection": "garbage_collection",
    "debugger": "debugger",
    "fault-campaign": "fault_campaign",
    "operator": "delegate_operator",
}
"""The labs, and the folder of each."""


def problems(lab: str, file: Path) -> list[str]:
    """What a file lacks, a sentence each; none where the lab is solved."""
    check = runpy.run_path(str(Path(__file__).parent / LABS[lab] / "check.py"))["check"]
    path = str(file.resolve())
    made = runpy.run_path(path) if file.suffix == ".py" else {"__file__": path}
    found: list[str] = check(made)
    return found


def main() -> int:
    """1 where something is missing."""
    match sys.argv[1:]:
        case [lab, file] if lab in LABS and Path(file).is_file():
            found = problems(lab, Path(file))
        case _:
            print(f"usage: {sys.argv[0]} {'|'.join(LABS)} FILE", file=sys.stderr)
            return 2
    print("\n".join(found) or "solved")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
