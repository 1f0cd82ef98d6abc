"""Write the pages and drawings of the documentation that are generated, or check them.

python docs/site/generate.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import bench_page
import config_page
import draw
import examples_page
import json_page
import supported_page

DOCS = Path(__file__).parents[1]

GENERATED: dict[str, Callable[[], str | bytes]] = {
    "bench.md": bench_page.page,
    "config.md": config_page.page,
    "examples.md": examples_page.page,
    "json.md": json_page.page,
    "supported.md": supported_page.page,
    "pictures/architecture.svg": draw.architecture,
    "pictures/computational.svg": draw.computational,
    "pictures/job.svg": draw.job,
}


def main() -> int:
    """1 where --check finds a file that is not what is generated."""
    check, stale = sys.argv[1:] == ["--check"], False
    for name, generate in GENERATED.items():
        made = generate()
        content = made if isinstance(made, bytes) else made.encode()
        path = DOCS / name
        if not check:
            path.write_bytes(content)
        elif path.read_bytes() != content:
            print(f"docs/{name} is out of date: run `make docs-page`", file=sys.stderr)
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
