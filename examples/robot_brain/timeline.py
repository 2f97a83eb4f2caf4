"""A picture of the tour: which node was alive when, what was lost, and what the robot did."""

from __future__ import annotations

import textwrap
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from neuraxis.mesh import Message
from neuraxis.mesh.counts import Counts

ROWS = ("sensor/thermal", "vision", "lang", "pfc", "motor", "motor-2", "motor-3")
COLOURS = {"alive": "#4c78a8", "late": "#d62728", "moving": "#54a24b", "stopped": "#e45756", "text": "#333333"}
WIDEST_GAP_S = 0.4  # statuses of the arm that are farther apart are not one stretch


class Timeline:
    """Collects what happens, from several threads, with times in seconds since `begun` (of time.monotonic)."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._lock = threading.Lock()
        self._presence: list[tuple[float, str, bool]] = []
        self._marks: list[tuple[float, str, str]] = []
        self._late: dict[str, list[tuple[float, int]]] = {}
        self._late_total: dict[str, int] = {}
        self._arm: list[tuple[float, list[float], bool, str]] = []
        self._celsius: list[tuple[float, float]] = []
        self._commands: list[tuple[float, str]] = []
        self._counts: dict[str, Counts] = {}

    # --- to collect ---

    def presence(self, name: str, alive: bool) -> None:
        self._add(self._presence, (self._now(), name, alive))

    def mark(self, name: str, what: str) -> None:
        self._add(self._marks, (self._now(), name, what))

    def command(self, text: str) -> None:
        self._add(self._commands, (self._now(), text))

    def health(self, message: Message) -> None:
        """Note how many steps of others a region got too late, since its last message."""
        late, name = int(message.value["late"]), message.node
        with self._lock:
            before = self._late_total.get(name, 0)
            self._late_total[name] = late
            if late > before:
                self._late.setdefault(name, []).append((self._now(), late - before))

    def motor(self, message: Message) -> None:
        data = message.value
        self._add(self._arm, (self._now(), data["hand"], bool(data["moving"]), data["stopped"]))

    def temperature(self, message: Message) -> None:
        self._add(self._celsius, (self._now(), float(message.value["celsius"])))

    def lost(self, counts: dict[str, Counts]) -> None:
        """Take over what the tour's own subscriptions counted."""
        self._counts = counts

    def _add(self, entries: list[Any], entry: Any) -> None:
        with self._lock:
            entries.append(entry)

    def _now(self) -> float:
        return time.monotonic() - self._begun

    # --- to draw ---

    def draw(self, file: Path, story: list[dict[str, Any]], title: str) -> None:
        """Write the picture; the file's name says whether it is an SVG or a PNG."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        story = sorted(story, key=lambda entry: entry["at_s"])
        end = max([entry["at_s"] for entry in story] + [1.0])
        begin = max(0.0, min([at for at, name, alive in self._presence if alive and name in ROWS] + [end]) - 0.5)
        width_s = end - begin
        lines = [
            line
            for number, entry in enumerate(story, 1)
            for line in textwrap.wrap(
                f"{number:>2}  {entry['at_s']:5.1f} s  {entry['what']}", 135, subsequent_indent=" " * 13
            )
        ]
        height = 6.4 + 0.145 * len(lines)
        with pyplot.rc_context({"font.size": 9, "font.family": "DejaVu Sans", "svg.fonttype": "none"}):
            figure = pyplot.figure(figsize=(12, height), layout="constrained")
            grid = figure.add_gridspec(4, 1, height_ratios=[2.8, 1.8, 0.9, 0.145 * len(lines)])
            nodes = figure.add_subplot(grid[0])
            arm, heat = figure.add_subplot(grid[1], sharex=nodes), figure.add_subplot(grid[2], sharex=nodes)
            nodes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=34)
            self._draw_nodes(nodes, end)
            self._draw_arm(arm, width_s)
            self._draw_heat(heat)
            levels = _levels([entry["at_s"] for entry in story], 0.022 * width_s, 4)
            for number, (entry, level) in enumerate(zip(story, levels, strict=True), 1):
                for axes in (nodes, arm, heat):
                    axes.axvline(entry["at_s"], color="#999999", linewidth=0.6, linestyle=":", zorder=0)
                nodes.text(
                    entry["at_s"], 1.005 + 0.05 * level, str(number), transform=nodes.get_xaxis_transform(),
                    ha="center", fontsize=8,
                )  # fmt: skip
            for axes in (nodes, arm):
                axes.tick_params(labelbottom=False)
            heat.set_xlabel("seconds since the start")
            heat.set_xlim(begin, end + 0.01 * width_s)
            for axes in (nodes, arm, heat):
                for side in ("top", "right"):
                    axes.spines[side].set_visible(False)
            words = figure.add_subplot(grid[3])
            words.axis("off")
            words.text(0, 1, "\n".join(lines), va="top", family="DejaVu Sans Mono", fontsize=7.6, color=COLOURS["text"])
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=110)
            pyplot.close(figure)

    def _draw_nodes(self, axes: Any, end: float) -> None:
        for row, name in enumerate(reversed(ROWS)):
            for begin, stop in self._spans(name, end):
                axes.barh(row, stop - begin, left=begin, height=0.5, color=COLOURS["alive"], alpha=0.75, zorder=2)
            for at, what in [(at, what) for at, whose, what in self._marks if whose == name]:
                shape = {"killed": "X", "stopped": "s", "continued": ">"}[what]
                axes.plot(at, row, shape, color="black", markersize=7, zorder=4)
                if what != "continued":
                    axes.annotate(
                        what, (at, row), (0, 9), textcoords="offset points", ha="center", fontsize=7.5,
                        color=COLOURS["text"], zorder=5,
                    )  # fmt: skip
            late = self._late.get(name, [])
            axes.vlines([at for at, _ in late], row - 0.25, row + 0.25, color=COLOURS["late"], linewidth=1.4, zorder=3)
            axes.text(
                1.005, row, self._losses(name), transform=axes.get_yaxis_transform(), va="center", fontsize=8,
                color=COLOURS["late"] if late else COLOURS["text"],
            )  # fmt: skip
        axes.set_yticks(range(len(ROWS)), tuple(reversed(ROWS)))
        axes.set_ylim(-0.6, len(ROWS) - 0.3)
        axes.text(
            1.005, len(ROWS) - 1, "bars: alive\nred: others' steps came late", transform=axes.get_yaxis_transform(),
            va="center", fontsize=8, color=COLOURS["text"],
        )  # fmt: skip

    def _losses(self, name: str) -> str:
        """Say in a few words what a node missed, and what of its messages the tour missed."""
        if name == "sensor/thermal":
            return ""
        lost = sum(one.lost + one.dropped for key, one in self._counts.items() if key.startswith(f"{name}/"))
        got = sum(one.received for key, one in self._counts.items() if key.startswith(f"{name}/"))
        late = sum(amount for _, amount in self._late.get(name, []))
        return f"{late:,} steps came late\n{lost:,} of {got + lost:,} messages lost"

    def _spans(self, name: str, end: float) -> list[tuple[float, float]]:
        """Return the stretches in which a node was seen."""
        spans: list[tuple[float, float]] = []
        since: float | None = None
        for at, whose, alive in sorted(self._presence):
            if whose != name:
                continue
            if alive and since is None:
                since = at
            elif not alive and since is not None:
                spans.append((since, at))
                since = None
        return spans if since is None else [*spans, (since, end)]

    def _draw_arm(self, axes: Any, width_s: float) -> None:
        times = [at for at, *_ in self._arm]
        for index, label, style in ((0, "x", "-"), (1, "y", "--")):
            axes.plot(times, [hand[index] for _, hand, *_ in self._arm], style, color="#222222", label=f"hand, {label}")
        for what, label, test in (
            ("moving", "moves", lambda one: one[2]),
            ("stopped", "stopped (heat, or nothing heard)", lambda one: bool(one[3])),
        ):
            for number, (begin, stop) in enumerate(_stretches([(one[0], test(one)) for one in self._arm])):
                axes.axvspan(
                    begin, stop, color=COLOURS[what], alpha=0.25, linewidth=0, label=label if not number else None
                )
        for (at, text), level in zip(
            self._commands, _levels([at for at, _ in self._commands], 0.14 * width_s, 4), strict=True
        ):
            axes.annotate(
                f"“{text}”", (at, 1.0), (2, -1 - 10 * level), xycoords=("data", "axes fraction"),
                textcoords="offset points", fontsize=7.5, color=COLOURS["text"], va="top",
            )  # fmt: skip
            axes.axvline(at, ymax=0.97 - 0.11 * level, color="#4c78a8", linewidth=1.0)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.9 * (high - low))
        axes.set_ylabel("hand (m)")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)

    def _draw_heat(self, axes: Any) -> None:
        axes.plot([at for at, _ in self._celsius], [celsius for _, celsius in self._celsius], color="#b5651d")
        axes.axhline(60, color=COLOURS["stopped"], linewidth=0.8)
        axes.annotate(
            "too hot", (0, 60), (3, 3), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=7.5,
            color=COLOURS["stopped"],
        )  # fmt: skip
        axes.set_ylim(0, 105)
        axes.set_ylabel("heat (°C)")


def _levels(times: list[float], apart: float, levels: int) -> list[int]:
    """Spread labels over levels, so that those of one level are some time apart where that is possible."""
    free = [float("-inf")] * levels
    found: list[int] = []
    for at in times:
        level = next((one for one in range(levels) if free[one] <= at), min(range(levels), key=lambda one: free[one]))
        free[level] = at + apart
        found.append(level)
    return found


def _stretches(entries: list[tuple[float, bool]]) -> list[tuple[float, float]]:
    """Return from when to when something was true."""
    found: list[tuple[float, float]] = []
    for (at, holds), (later, _) in pairwise(entries):
        if not holds:
            continue
        stop = later if later - at < WIDEST_GAP_S else at + 0.05
        if found and found[-1][1] == at:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((at, stop))
    return found
