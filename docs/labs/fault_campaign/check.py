"""The check of lab 5: the campaign passes a good store, and finds out each broken one."""

import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potash.sdk import PotashError
from potash.testing import booted_device

STORES = Path(__file__).with_name("stores.py")
TIMEOUT = 0.2
"""Seconds, after which a command is taken for lost."""


def check(made: Mapping[str, Any]) -> list[str]:
    """What is missing, a sentence each."""
    stores, problems = runpy.run_path(str(STORES)), []
    with booted_device(size="16M", timeout=TIMEOUT, options=["--allow-faults"]) as drive:
        for store in (stores["Store"], *stores["BROKEN"]):
            good = store is stores["Store"]
            drive.clear_faults()
            try:
                made["campaign"](drive, store)
            except (AssertionError, RuntimeError, PotashError) as error:
                if good:
                    problems.append(f"the good store does not pass: {error}")
            else:
                if not good:
                    problems.append(f"{store.__name__} passes: {store.__doc__}")
    return problems
