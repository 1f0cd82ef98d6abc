"""The file that a viewer opens: Chrome's JSON trace-event format, written event after event.

Viewers (ui.perfetto.dev, chrome://tracing) put events in order by themselves; where two begin in
the same nanosecond, the one that is written first is the outer one.

Source: "Trace Event Format" (the Chromium project).
"""

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

Event = dict[str, Any]

MICROSECONDS = 1e6
"""The format counts in microseconds; three digits behind the point are nanoseconds."""


class Document:
    """A trace that is being written to `file`; `began` is the time that it calls zero.

    A moment's unit is `scale` microseconds, by default a second.
    """

    def __init__(
        self, file: BinaryIO, began: float, about: Mapping[str, object], scale: float = MICROSECONDS
    ) -> None:
        self.events = 0
        """Number of events written, without the names of tracks."""
        self._file = file
        self._began = began
        self._scale = scale
        self._flows = 0
        self._tracks: dict[tuple[int, str], int] = {}
        head = {"displayTimeUnit": "ns", "otherData": dict(about), "traceEvents": []}
        text = json.dumps(head, ensure_ascii=False)
        file.write(text[: text.rindex("]")].encode())
        self._separator = b"\n"

    def close(self) -> None:
        """Write the end, without which the file is no JSON."""
        self._file.write(b"\n]}\n")

    def microseconds(self, moment: float) -> float:
        """A moment on the document's axis."""
        return round((moment - self._began) * self._scale, 3)

    def write(self, event: Event) -> None:
        if event["ph"] != "M":
            self.events += 1
        line = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        self._file.write(self._separator + line.encode())
        self._separator = b",\n"

    def name_process(self, process: int, name: str, place: int) -> None:
        """Say what a process is called, and how far down it stands."""
        for what, args in (
            ("process_name", {"name": name}),
            ("process_sort_index", {"sort_index": place}),
        ):
            self.write({"ph": "M", "pid": process, "tid": 0, "name": what, "args": args})

    def track(self, process: int, name: str) -> int:
        """The number of a process's track of that name, which is made where there is none."""
        known = self._tracks.get((process, name))
        if known is not None:
            return known
        number = self._tracks[process, name] = len(self._tracks) + 1
        self.write(_about_track(process, number, "thread_name", {"name": name}))
        return number

    def sort_track(self, process: int, name: str, place: int) -> None:
        """Say how far down in its process a track stands."""
        number = self.track(process, name)
        self.write(_about_track(process, number, "thread_sort_index", {"sort_index": place}))

    def slice(
        self,
        process: int,
        track: str,
        name: str,
        began: float,
        ended: float,
        *,
        category: str,
        about: Mapping[str, object] | None = None,
    ) -> None:
        """Something that took from one moment to another."""
        duration = round(self.microseconds(ended) - self.microseconds(began), 3)
        args = dict(about or {})
        self._event("X", process, track, began, name=name, dur=duration, cat=category, args=args)

    def instant(
        self, process: int, track: str, name: str, moment: float, about: Mapping[str, object]
    ) -> None:
        self._event("i", process, track, moment, s="t", name=name, args=dict(about))

    def begin(self, process: int, track: str, name: str, moment: float, *, category: str) -> None:
        """Something begins that `end` will end, inside of what has begun on that track before."""
        self._event("B", process, track, moment, name=name, cat=category)

    def end(
        self, process: int, track: str, moment: float, about: Mapping[str, object] | None = None
    ) -> None:
        self._event("E", process, track, moment, args=dict(about or {}))

    def counter(self, process: int, name: str, moment: float, values: Mapping[str, object]) -> None:
        """A process's counter has these values from that moment on."""
        event = {"ph": "C", "pid": process, "name": name, "ts": self.microseconds(moment)}
        self.write(event | {"args": values})

    def arrow_from(
        self, process: int, track: str, name: str, moment: float, *, category: str = "flow"
    ) -> int:
        """An arrow leaves the slice that is there at that moment; gives its number."""
        self._flows += 1
        self._event("s", process, track, moment, name=name, cat=category, id=self._flows)
        return self._flows

    def arrow_to(
        self,
        process: int,
        track: str,
        name: str,
        moment: float,
        number: int,
        *,
        category: str = "flow",
    ) -> None:
        """The arrow arrives at the slice that is there at that moment."""
        self._event("f", process, track, moment, bp="e", name=name, cat=category, id=number)

    def _event(self, kind: str, process: int, track: str, moment: float, **fields: object) -> None:
        at = self.microseconds(moment)
        self.write(
            {"ph": kind, "pid": process, "tid": self.track(process, track), "ts": at} | fields
        )


def _about_track(process: int, number: int, what: str, args: Event) -> Event:
    return {"ph": "M", "pid": process, "tid": number, "name": what, "args": args}
