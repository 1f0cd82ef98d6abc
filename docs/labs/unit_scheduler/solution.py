"""Lab 8, solved: the tenant that has had the least for its weight goes first."""

from collections import Counter
from collections.abc import Sequence

from potash.extend import scheduler
from potash_device.units import Choice, Task, Unit


@scheduler
class Mine:
    """Weighted fair queueing: a tenant's use is the time of its executions, divided by its
    weight."""

    slice = 100_000
    common = True

    def __init__(self) -> None:
        self.use: dict[int, float] = {}
        self.counted: dict[Task, int] = {}
        """Executions at the last choice, and the time that is counted of each."""

    def pick(self, ready: Sequence[Task], units: Sequence[Unit], now: int) -> Choice:
        running = [unit.task for unit in units if unit.task is not None]
        for task, before in self.counted.items():
            self.use[task.namespace] += (task.done - before) / task.priority
        tasks = [*ready, *running]
        # A tenant none of whose executions was there at the last choice has no credit from before.
        here = {task.namespace for task in tasks if task in self.counted}
        floor = min(
            (self.use[tenant] for tenant in here), default=max(self.use.values(), default=0)
        )
        for tenant in {task.namespace for task in tasks} - here:
            self.use[tenant] = max(self.use.get(tenant, 0), floor)
        self.counted = {task: task.done for task in tasks}
        # What runs on other units will be counted when it ends; then, a slice is expected of it.
        expected = Counter(task.namespace for task in running)

        def urgency(task: Task) -> float:
            tenant = task.namespace
            return self.use[tenant] + expected[tenant] * self.slice / task.priority

        return Choice(min(ready, key=urgency), next(unit for unit in units if unit.task is None))

    def preempt(self, task: Task, units: Sequence[Unit], now: int) -> Unit | None:
        return None
