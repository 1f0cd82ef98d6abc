"""Lab 8: a scheduler of compute units. This one takes what came first, and lets it end."""

from collections.abc import Sequence

from potash.extend import scheduler
from potash_device.units import Choice, Task, Unit


@scheduler
class Mine:
    """`task.namespace` is the tenant, `task.priority` its weight."""

    slice: int | None = None
    common = True

    def pick(self, ready: Sequence[Task], units: Sequence[Unit], now: int) -> Choice:
        return Choice(ready[0], next(unit for unit in units if unit.task is None))

    def preempt(self, task: Task, units: Sequence[Unit], now: int) -> Unit | None:
        return None
