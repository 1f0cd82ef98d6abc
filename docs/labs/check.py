"""Check what somebody has made of a lab: python docs/labs/check.py LAB FILE."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import traceback
from pathlib import Path

from potash.vm.parent_death import dies_with_parent

LABS = {
    "vendor-command": "vendor_command",
    "schedule": "schedule",
    "garbage-collection": "garbage_collection",
    "debugger": "debugger",
    "fault-campaign": "fault_campaign",
    "operator": "delegate_operator",
    "translation-layer": "translation_layer",
    "unit-scheduler": "unit_scheduler",
}
"""The labs, and the folder of each."""
LIMIT = 300
"""Seconds that a check may take; each takes a few."""
HERE = "--here"
"""The first word where this process is to do the check itself."""


class Made(dict[str, object]):
    """What a file defines."""

    def __missing__(self, name: str) -> object:
        raise LookupError(f"it defines no {name}")


def problems(lab: str, file: Path) -> list[str]:
    """What a file lacks, a sentence each; none where the lab is solved."""
    check = runpy.run_path(str(Path(__file__).parent / LABS[lab] / "check.py"))["check"]
    path = str(file.resolve())
    try:
        made = Made(runpy.run_path(path) if file.suffix == ".py" else {"__file__": path})
        found: list[str] = check(made)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody's code
        lines = [
            at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == path
        ]
        where = f"{file.name}, line {lines[-1]}" if lines else file.name
        return [f"{where}: {type(error).__name__}: {' '.join(str(error).split())}"]
    return found


def supervised(lab: str, file: Path, limit: float = LIMIT) -> int:
    """Do a check in a process of its own, which is killed with all that it has started when the
    time is over or this process ends; its exit code."""
    command = [sys.executable, __file__, HERE, lab, str(file)]
    with subprocess.Popen(dies_with_parent(command), start_new_session=True) as process:
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            print(f"the check takes more than {limit} s; does {file.name} loop for ever?")
            return 1
        finally:
            # The process may have ended, and others of its group not.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    if code < 0:
        print(f"the check was ended by {signal.Signals(-code).name}")
        return 1
    return code


def main() -> int:
    """1 where something is missing."""
    match sys.argv[1:]:
        case [first, lab, file] if first == HERE:
            found = problems(lab, Path(file))
            print("\n".join(found) or "solved")
            return int(bool(found))
        case [lab, file] if lab in LABS and Path(file).is_file():
            return supervised(lab, Path(file))
    print(f"usage: {sys.argv[0]} {'|'.join(LABS)} FILE", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
