"""The screen of `potash top`, in a terminal or a browser: a Textual application.

It has what `screen` has as text, with the last minutes' rates as curves, the latencies of the last
interval as bars, and the device's log.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import DataTable, Footer, RichLog, Sparkline, Static
from textual.worker import get_current_worker

from csd_spec.text import plain
from potash.observing import screen
from potash.observing.rates import Rates, between
from potash.observing.status import ask
from potash.sdk.errors import DeviceNotFound, PotashError
from potash_firmware.snapshot import Histogram, LogLine, Snapshot

KEPT = 120
"""Intervals that the curves show."""

BAR = 24
"""Characters of the longest bar of a histogram."""

CURVES = {
    "commands": ("commands/s", screen.number),
    "read_bytes": ("read", screen.human_rate),
    "written_bytes": ("written", screen.human_rate),
}


class Curve(Vertical):
    """A rate over the last intervals."""

    def __init__(self, key: str) -> None:
        super().__init__(id=f"curve-{key}", classes="panel")
        self._key = key
        self._values = [0.0] * KEPT

    def compose(self) -> ComposeResult:
        yield Sparkline(self._values, summary_function=max)

    def show(self, rates: Rates) -> None:
        title, describe = CURVES[self._key]
        value = float(rates[self._key])  # type: ignore[literal-required]  # one of CURVES
        self._values = [*self._values[1:], value]
        self.border_title = f"{title} {describe(value)}"
        self.query_one(Sparkline).data = self._values


class Rows(DataTable[str]):
    """A table of `screen`, whose first row are its heads."""

    def show(self, rows: Iterable[screen.Row]) -> None:
        heads, *body = rows
        self.clear(columns=len(self.columns) != len(heads))
        if not self.columns:
            self.add_columns(*heads)
        for row in body:
            self.add_row(*(plain(cell) for cell in row))


def _titled(widget: Widget, title: str) -> Widget:
    widget.border_title = title
    return widget.add_class("panel")


class LiveScreen(App[None]):
    """The activity of the device whose status socket is `place`, every `interval` seconds.

    It ends with the device; `ended` is the reason then.
    """

    TITLE = "potash top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("space", "pause", "Pause"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]
    CSS = """
    .panel { border: round $primary; padding: 0 1; height: auto; }
    #curves { height: 5; }
    #curves Curve { width: 1fr; height: 5; }
    Sparkline { height: 3; }
    #tables { height: auto; }
    #tables .panel { width: 1fr; }
    DataTable { height: auto; max-height: 14; }
    #latencies, #flash { width: 1fr; }
    #log { height: 10; }
    """

    def __init__(self, place: Path, interval: float) -> None:
        super().__init__()
        self.ended: PotashError | None = None
        self.interrupted = False
        self.paused = False
        self._place = place
        self._interval = interval
        self._logged: Sequence[LogLine] = ()

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield _titled(Static(id="summary"), plain(str(self._place.with_suffix(""))))
            with Horizontal(id="curves"):
                for key in CURVES:
                    yield Curve(key)
            with Horizontal(id="tables"):
                yield _titled(Static(id="latencies"), "latency of this interval")
                yield _titled(Static(id="flash"), "modelled flash")
            yield _titled(Rows(id="queues", show_cursor=False), "queues")
            yield _titled(Rows(id="accelerators", show_cursor=False), "accelerators")
            yield _titled(Rows(id="extensions", show_cursor=False), "extensions")
            yield _titled(Static(id="errors"), "errors")
            yield _titled(RichLog(id="log", max_lines=1000), "log")
        yield Footer()

    def on_mount(self) -> None:
        self.run_worker(self._watch, thread=True)

    def action_interrupt(self) -> None:
        """End as an interrupt does, which a terminal does not send while the screen is there."""
        self.interrupted = True
        self.exit()

    def action_pause(self) -> None:
        """Keep what is shown, or go on."""
        self.paused = not self.paused

    def _watch(self) -> None:
        """Ask the device until it ends; in a thread, as it may take long to answer."""
        worker = get_current_worker()
        try:
            before = ask(self._place)
            while not worker.is_cancelled:
                time.sleep(self._interval)
                after = ask(self._place)
                self.call_from_thread(self.show, after, between(before, after))
                before = after
        except DeviceNotFound:
            self.ended = PotashError("the device has ended")
        except PotashError as error:
            self.ended = error
        if self.ended is not None and not worker.is_cancelled:
            self.call_from_thread(self.exit)

    def show(self, snapshot: Snapshot, rates: Rates) -> None:
        """Show a snapshot, and the rates since the one before."""
        if self.paused:
            return
        self._text("#summary", screen.summary(snapshot, rates))
        for curve in self.query(Curve):
            curve.show(rates)
        self._text("#latencies", latencies(rates))
        self._text("#flash", screen.modelled(snapshot, rates))
        self._text("#errors", screen.errors(snapshot))
        self.query_one("#queues", Rows).show(screen.queues(snapshot, rates))
        self.query_one("#accelerators", Rows).show(screen.accelerators(snapshot, rates))
        added = self.query_one("#extensions", Rows)
        added.display = bool(snapshot["extensions"])
        added.show(screen.extensions(snapshot))
        for line in snapshot["log"]:
            if line not in self._logged:  # times can go back
                clock = time.strftime("%H:%M:%S", time.localtime(line["time"]))
                said = f"{clock} {line['level']} {line['component']}: {line['message']}"
                self.query_one(RichLog).write(Text(plain(said)))
        self._logged = snapshot["log"]

    def _text(self, widget: str, lines: Iterable[str]) -> None:
        """Put lines in a panel, which is not there without any."""
        found = [plain(line) for line in lines if line]
        panel = self.query_one(widget, Static)
        panel.display = bool(found)
        panel.update(Text("\n".join(found)))


def latencies(rates: Rates) -> Iterable[str]:
    """Histograms of how long commands took."""
    found = rates["latencies"]
    kinds = (found["read"], "reads"), (found["write"], "writes"), (found["other"], "other commands")
    used = [(one, kind) for one, kind in kinds if one["commands"]]
    for one, kind in used:
        yield (
            f"{one['commands']} {kind}: {screen.microseconds(one['p50'])} (median), "
            f"{screen.microseconds(one['p99'])} (99 %)"
        )
        yield from bars(one)
    if not used:
        yield "no I/O commands"


def bars(histogram: Histogram) -> Iterable[str]:
    """A bar for each bucket from the first to the last that has commands."""
    buckets = histogram["buckets"]
    used = [index for index, one in enumerate(buckets) if one["commands"]]
    if not used:
        return
    most = max(one["commands"] for one in buckets)
    for one in buckets[used[0] : used[-1] + 1]:
        bar = "█" * -(-BAR * one["commands"] // most)
        yield f"{screen.microseconds(one['most']):>8} {bar} {one['commands'] or ''}"
