"""The options of commands that carry out many tasks: processes of this machine, or a cluster."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import click

from potash.cli.drive import common
from potash.fleet import workers

_Task = TypeVar("_Task")
_Outcome = TypeVar("_Outcome")

parallel_options: common.Decorator = common.together(
    click.option(
        "--jobs", type=click.IntRange(1), help="Number of processes (default: one per processor)."
    ),
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Use the Dask cluster of the scheduler at this address.",
    ),
)


def pool(
    carry_out: Callable[[_Task], _Outcome], jobs: int | None, scheduler: str | None
) -> AbstractContextManager[workers.Workers[_Task, _Outcome]]:
    """The workers that the options name. Raises UsageError for both options together."""
    if jobs is not None and scheduler is not None:
        raise click.UsageError("--jobs and --scheduler exclude each other")
    if scheduler:
        return workers.cluster(carry_out, scheduler)
    return workers.local(carry_out, jobs)
