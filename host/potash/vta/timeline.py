"""A stream's run as a picture: what each module does, cycle after cycle, and the tokens between."""

from collections.abc import Sequence

from potash.vta.svg import Picture
from potash_device.vta.isa import Stage
from potash_device.vta.timing.result import Kind, Timing, tokens

WIDTH, LEFT, RIGHT = 1000, 90, 985
TOP, ROW, BAR = 44, 46, 24
COLOURS = {
    Kind.TOKENS: "#b0b0b0",
    Kind.UOP: "#9467bd",
    Kind.WGT: "#e08a1e",
    Kind.INP: "#f2c14e",
    Kind.ACC: "#8c6d31",
    Kind.OUT: "#2a9d8f",
    Kind.GEMM: "#1f6fb2",
    Kind.RESET: "#a8cbe8",
    Kind.ALU: "#6a9a3b",
}
ROWS = ("fetch", *(stage.name for stage in Stage), "DRAM reads", "DRAM writes")
TICKS = (1, 2, 5)


def draw(timing: Timing, texts: Sequence[str]) -> bytes:
    """The picture as SVG. `texts` says each instruction in words."""
    height = TOP + ROW * len(ROWS) + 40
    picture = Picture(WIDTH, height, f"{len(timing)} instructions in {timing.cycles} cycles")
    scale = (RIGHT - LEFT) / max(timing.cycles, 1)

    def bar(row: str, begin: int, end: int, colour: str, hint: str) -> None:
        picture.add(
            "rect",
            x=LEFT + begin * scale,
            y=_top(row),
            width=max((end - begin) * scale, 0.3),
            height=BAR,
            fill=colour,
            stroke="white",
            stroke_width=0.4,
            hint=hint,
        )

    _ruler(picture, timing.cycles, scale)
    for one in timing:
        moments, kind = one.moments, Kind(one.facts.kind)
        stage = Stage(one.facts.stage).name
        label = f"{one.index}: {texts[one.index]}"
        bar("fetch", one.fetching, moments.fetched, "#666666", label)
        span = f"cycles {moments.start} to {moments.end}"
        bar(stage, moments.start, moments.end, COLOURS[kind], f"{label}\n{span}")
        for wait in one.delays:
            bar(stage, wait.begin, wait.end, "#e8e8e8", f"{label}\nwaits: {wait.reason}")
        if one.facts.beats:
            row = "DRAM writes" if kind is Kind.OUT else "DRAM reads"
            bar(row, moments.granted, moments.granted + one.facts.beats, COLOURS[kind], label)
    for token in tokens(timing):
        if token.taker is not None:
            down = token.queue[0] < token.queue[1]
            giver, taker = (_top(stage.name) for stage in token.queue)
            start = (LEFT + token.given * scale, giver + (BAR if down else 0))
            end = (LEFT + token.taken * scale, taker + (0 if down else BAR))
            picture.line(start, end, stroke="#c0392b" if down else "#555555", stroke_width=0.8)
    for name in ROWS:
        picture.text(LEFT - 8, _top(name) + BAR / 2 + 4, name, text_anchor="end")
    _legend(picture, timing, height - 12)
    return bytes(picture)


def _top(row: str) -> int:
    return TOP + ROW * ROWS.index(row)


def _ruler(picture: Picture, cycles: int, scale: float) -> None:
    """Cycles along the top, at a round distance."""
    step = next(
        digit * 10**power
        for power in range(64)
        for digit in TICKS
        if digit * 10**power * 12 >= cycles
    )
    bottom = TOP + ROW * len(ROWS) - ROW + BAR
    for cycle in range(0, cycles + 1, step):
        x = LEFT + cycle * scale
        picture.line((x, TOP - 6), (x, bottom), stroke="#e6e6e6")
        picture.text(x, TOP - 12, str(cycle), text_anchor="middle")
    picture.text(LEFT - 8, TOP - 12, "cycle", text_anchor="end")


def _legend(picture: Picture, timing: Timing, y: int) -> None:
    x = float(LEFT)
    for kind in Kind:
        if any(kind in work for work in timing.work.values()):
            picture.add("rect", x=x, y=y - 10, width=12, height=12, fill=COLOURS[kind])
            picture.text(x + 16, y, kind.name)
            x += 80
