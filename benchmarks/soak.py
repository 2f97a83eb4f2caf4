"""Minutes of nodes at 1 kHz, one of which is killed and comes back every ten seconds; and a brain beside them.

    python benchmarks/soak.py --minutes 10

Two speakers, two hearers and the one that is killed (it speaks and hears, and it was the first on the mesh) are a
process each. At the end everything must be accounted for:

- What each hearer received of each life of each speaker, and what it was told is missing, is what that life has sent.
  Beyond that only the first and last words of one that was killed may be missing; how many is known from its own count.
- The memory, threads and descriptors of those that lived all the time do not go on growing after the first cycles.
- In the brain (three regions in lockstep, one of them killed and started again with its last state) every absence is
  recorded by those that hear that region, and at the end all hear each other again.

It exits with status 1 if one of these does not hold.
"""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import psutil
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from soak_nodes import TOPICS, read_counts

HERE = Path(__file__).parent
SPEAKERS, HEARERS, VICTIM = ("speaker-1", "speaker-2"), ("hearer-1", "hearer-2"), "victim"
AWAY_S = 1.0  # how long one that was killed stays away
LIMIT_S = 60.0
PARTS = 6
# What may be more at the end. Zenoh's runtimes have some threads more or less at times. A message that waits takes 9 to
# 50 KB, however small it is, and the heap keeps much of what a backlog needed. Of what a region's engine has reserved
# for spikes, a part is used for the first time when there are more of them than ever before.
MORE_BYTES, MORE_SHARE, MOST_MORE_BYTES = 4 * 2**20, 0.05, 32 * 2**20
ENGINE_BYTES = 12 * 2**20
MORE_THREADS, MORE_DESCRIPTORS = 2, 1

app = App(help=__doc__, help_format="plaintext", version_flags=[])


class Process:
    """A process of the soak, which answers lines with lines of JSON."""

    def __init__(self, script: str, *words: str) -> None:
        self.name = words[2] if len(words) > 2 else script
        self._rest = b""
        self._popen = subprocess.Popen(
            [sys.executable, str(HERE / script), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.usage = psutil.Process(self._popen.pid)
        self.samples: list[Sequence[float]] = []  # (seconds, bytes, threads, descriptors)

    def said(self, limit_s: float = LIMIT_S) -> Any:
        assert self._popen.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._popen.stdout], [], [], left)[0]:
                raise RuntimeError(f"{self.name} says nothing")
            piece = os.read(self._popen.stdout.fileno(), 65536)
            if not piece:
                raise RuntimeError(f"{self.name} has ended, with {self._popen.wait()}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def ask(self, word: str = "how?") -> Any:
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{word}\n".encode())
        self._popen.stdin.flush()
        return self.said()

    def sample(self, at_s: float) -> None:
        with self.usage.oneshot():
            used = self.usage.memory_info().rss, self.usage.num_threads()
        self.samples.append((at_s, *used, self.usage.num_fds()))

    def kill(self) -> None:
        self._popen.kill()
        self._popen.communicate()


# --- the nodes ---


class Nodes:
    """The speakers, the hearers and the victim, and what they have counted."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._mesh = f"soak-{os.getpid()}"
        self.kills = 0
        self.victims: list[Path] = []
        self.victim = self._start("speak", VICTIM, self._next_life())
        self.victim.said()
        self.hearers = {name: self._start("hear", name) for name in HEARERS}
        for one in self.hearers.values():
            one.said()
        self.speakers = {name: self._start("speak", name, folder / name) for name in SPEAKERS}
        for one in self.speakers.values():
            one.said()
        for one in (self.victim, *self.speakers.values()):
            one.said()

    @property
    def survivors(self) -> list[Process]:
        return [*self.speakers.values(), *self.hearers.values()]

    def kill_victim(self) -> None:
        self.victim.kill()
        self.kills += 1

    def return_victim(self) -> None:
        self.victim = self._start("speak", VICTIM, self._next_life())
        self.victim.said()
        self.victim.said()

    def finish(self) -> None:
        """Stop all, and have them say a little more until all hearers have heard the end, or do not hear it."""
        speakers = [*self.speakers.values(), self.victim]
        for one in speakers:
            one.ask("stop")
        for _ in range(50):
            sent = [one.ask("more") for one in speakers]
            time.sleep(0.1)
            if all(self._heard_all(one.ask()["streams"], sent) for one in self.hearers.values()):
                return

    def accounts(self) -> list[dict[str, Any]]:
        """For each hearer and each life of each speaker: what was sent, and what became of it."""
        lives = [(name, *read_counts(self._folder / name)) for name in SPEAKERS]
        lives += [(VICTIM, *read_counts(path)) for path in self.victims]
        found = []
        for hearer, process in self.hearers.items():
            report = process.ask()
            streams = {tuple(one[:3]): one[3:] for one in report["streams"]}
            for name, incarnation, counts in lives:
                for topic, (begun, sent) in counts.items():
                    heard = streams.pop((name, topic, incarnation), None)
                    last = name != VICTIM or incarnation == lives[-1][1]
                    found.append(_account(hearer, name, topic, begun, sent, heard, was_killed=not last))
            for stream in streams:
                found.append({"hearer": hearer, "speaker": stream[0], "topic": stream[1], "faults": ["never spoke"]})
            found += _same_as_counted(hearer, report["counts"], found)
        return found

    def _heard_all(self, streams: list[list[Any]], sent: list[dict[str, int]]) -> bool:
        ends = {(name, topic): 0 for name in (*SPEAKERS, VICTIM) for topic in TOPICS}
        newest = dict.fromkeys(ends, 0)
        for name, topic, incarnation, _, last, *_ in streams:
            if incarnation >= newest[name, topic]:
                newest[name, topic], ends[name, topic] = incarnation, last + 1
        wanted = {
            (name, topic): one[topic] for name, one in zip((*SPEAKERS, VICTIM), sent, strict=True) for topic in one
        }
        return ends == wanted

    def _next_life(self) -> Path:
        self.victims.append(self._folder / f"{VICTIM}-{len(self.victims)}")
        return self.victims[-1]

    def _start(self, role: str, name: str, *counts: Path) -> Process:
        others = ",".join(HEARERS)
        started = Process("soak_nodes.py", role, self._mesh, name, others, *map(str, counts))
        self._stack.callback(started.kill)
        return started


def _account(
    hearer: str, speaker: str, topic: str, begun: int, sent: int, heard: list[int] | None, was_killed: bool
) -> dict[str, Any]:
    first, last, received, lost, disordered = heard or [0, -1, 0, 0, 0]
    faults = []
    if first and speaker != VICTIM:
        faults.append(f"the first {first} were never heard")
    if disordered:
        faults.append(f"{disordered} out of order")
    if received + lost != last - first + 1:
        faults.append(f"{received} received and {lost} lost are not the {last - first + 1} up to the last")
    unsent = begun - (last + 1)
    if unsent < 0:
        faults.append(f"{-unsent} more than were sent")
    if unsent > 0 and not was_killed:
        faults.append(f"the last {unsent} were never heard")
    return {
        "hearer": hearer, "speaker": speaker, "topic": topic, "sent": sent, "received": received, "lost": lost,
        "first_words": first, "last_words": max(0, unsent), "faults": faults,
    }  # fmt: skip


def _same_as_counted(hearer: str, counts: dict[str, list[int]], accounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Whether the node's own counts are the sum of what was accounted for."""
    wrong = []
    for name in (*SPEAKERS, VICTIM):
        for topic in TOPICS:
            mine = [one for one in accounts if (one["hearer"], one["speaker"], one["topic"]) == (hearer, name, topic)]
            summed = [sum(one[what] for one in mine) for what in ("received", "lost")]
            received, lost, repeated = counts.get(f"{name}/{topic}", [0, 0, 0])
            if [received, lost] != summed or repeated:
                faults = [f"the node counted {received} received, {lost} lost and {repeated} repeated, not {summed}"]
                wrong.append({"hearer": hearer, "speaker": name, "topic": topic, "faults": faults})
    return wrong


# --- what was used ---


def usage(name: str, samples: Sequence[Sequence[float]], warm_s: float) -> dict[str, Any]:
    """What a process used, in equal parts of what was seen after all was warm: memory, threads and descriptors.

    Of memory it is the least, of threads the median: what a busy moment needs is no growth. Of descriptors it is the
    most: there are fewer while one is away. What grows does so from part to part; a single step in memory may stay.
    """
    counted = [one for one in samples if one[0] >= warm_s]
    if len(counted) < PARTS:
        return {
            "process": name,
            "warm": [0, 0, 0],
            "end": [0, 0, 0],
            "samples": samples,
            "faults": ["hardly looked at"],
        }
    parts = []
    for number in range(PARTS):
        part = counted[number * len(counted) // PARTS : (number + 1) * len(counted) // PARTS]
        threads = statistics.median(one[2] for one in part)
        parts.append([min(one[1] for one in part), threads, max(one[3] for one in part)])
    warm, end = parts[0], parts[-1]
    faults = []
    growth = (PARTS - 1) * statistics.median(after[0] - before[0] for before, after in pairwise(parts))
    reserved = ENGINE_BYTES if name.startswith("brain: ") else 0
    if growth > warm[0] * MORE_SHARE + MORE_BYTES + reserved:
        faults.append(f"memory grows, by {growth / 2**20:.1f} MiB so far")
    if end[0] > warm[0] + MOST_MORE_BYTES:
        faults.append(f"{(end[0] - warm[0]) / 2**20:.1f} MiB more memory")
    for i, what, more in ((1, "threads", MORE_THREADS), (2, "descriptors", MORE_DESCRIPTORS)):
        if end[i] > warm[i] + more:
            faults.append(f"{end[i] - warm[i]:g} more {what}")
    return {"process": name, "warm": warm, "end": end, "samples": samples, "faults": faults}


def check_brain(found: dict[str, Any]) -> list[str]:
    """Whether those that hear the region that was killed have recorded each of its absences, and are whole again."""
    faults = [] if found["whole"] else ["not all regions hear each other at the end"]
    for region, story in found["stories"].items():
        for other, heard in story["upstream"].items():
            silences = heard["silences"]
            expected = found["kills"] if other == "cortex" else 0
            if region != "cortex" and len(silences) != expected:
                faults.append(f"{region} recorded {len(silences)} absences of {other}, which had {expected}")
            ends = [step for first, last, _ in silences for step in (first, last)]
            if None in ends or ends != sorted(ends):
                faults.append(f"{region}: the absences of {other} are not in order: {silences}")
            if heard["lost"]:
                faults.append(f"{region}: {heard['lost']} steps of {other} are lost")
    return faults


# --- the command ---


@app.default
def main(
    *,
    minutes: Annotated[float, Parameter(help="How long.")] = 10.0,
    every_s: Annotated[float, Parameter(help="Seconds from one kill to the next.")] = 10.0,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), help="Print what was found as JSON.")] = False,
) -> int:
    seconds = 60.0 * minutes
    if seconds < 4 * every_s:
        print("soak: less than four kills show nothing", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing may stay behind
    found = soak(seconds, every_s)
    if as_json:
        print(json.dumps(found))
    else:
        show(found)
    return 1 if found["faults"] else 0


def soak(seconds: float, every_s: float) -> dict[str, Any]:
    """Run it; what was found, with all `faults` in one list."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        brain = Process("soak_brain.py", str(seconds), str(every_s))
        stack.callback(brain.kill)
        nodes = Nodes(Path(folder), stack)
        begun = time.monotonic()
        for second in range(1, round(seconds) + 1):
            time.sleep(max(0.0, begun + second - time.monotonic()))
            for one in nodes.survivors:
                one.sample(time.monotonic() - begun)
            away = second % every_s
            if away == 0 and second + every_s <= seconds:
                nodes.kill_victim()
            elif away == AWAY_S and second > every_s:
                nodes.return_victim()
        nodes.finish()
        accounts = nodes.accounts()
        ran = brain.said(3 * LIMIT_S)
        survived = {one.name: one.samples for one in nodes.survivors}
        survived |= {f"brain: {name}": samples for name, samples in ran.pop("resources").items()}
        kills = nodes.kills
    # What is kept of the past is full after some cycles: a state's last messages, a region's journal.
    warm_s = min(2 * every_s, seconds / 3) if seconds < 300 else 120.0
    used = [usage(name, samples, warm_s) for name, samples in survived.items()]
    faults = [
        f"{one['hearer']} of {one['speaker']}/{one['topic']}: {text}" for one in accounts for text in one["faults"]
    ]
    faults += [f"{one['process']}: {text}" for one in used for text in one["faults"]]
    faults += [f"brain: {text}" for text in check_brain(ran)]
    return {
        "seconds": seconds, "kills": kills, "accounts": accounts, "usage": used, "brain": ran, "faults": faults,
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    console = Console(width=None if Console().is_terminal else 120)
    console.print(_heard_table(found))
    console.print(_usage_table(found))
    brain = found["brain"]
    console.print(f"brain: {brain['step']:,} steps, one region killed {brain['kills']} times; recorded absences:")
    for region, story in brain["stories"].items():
        for other, heard in story["upstream"].items():
            if heard["silences"]:
                steps = sum(last - first + 1 for first, last, _ in heard["silences"] if last is not None)
                console.print(f"  {region} of {other}: {len(heard['silences'])}, {steps:,} steps")
    for fault in found["faults"]:
        console.print(f"[red]{fault}[/red]", highlight=False)
    if not found["faults"]:
        console.print("everything is accounted for, and nothing has grown")


def _heard_table(found: dict[str, Any]) -> Table:
    table = Table(title=f"{found['seconds'] / 60:g} minutes, {found['kills']} kills", box=None, pad_edge=False)
    for name in ("hearer", "speaker", "topic"):
        table.add_column(name)
    for name in ("lives", "sent", "received", "lost", "first words", "last words"):
        table.add_column(name, justify="right")
    for hearer in HEARERS:
        for speaker in (*SPEAKERS, VICTIM):
            for topic in TOPICS:
                mine = [
                    one
                    for one in found["accounts"]
                    if (one["hearer"], one["speaker"], one["topic"]) == (hearer, speaker, topic) and "sent" in one
                ]
                whats = ("sent", "received", "lost", "first_words", "last_words")
                sums = [sum(one[what] for one in mine) for what in whats]
                table.add_row(hearer, speaker, topic, f"{len(mine):,}", *(f"{one:,}" for one in sums))
    return table


def _usage_table(found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("process")
    for name in ("MiB warm", "end", "threads warm", "end", "descriptors warm", "end"):
        table.add_column(name, justify="right")
    for one in found["usage"]:
        warm, end = one["warm"], one["end"]
        cells = [f"{warm[0] / 2**20:.1f}", f"{end[0] / 2**20:.1f}"]
        cells += [f"{value:g}" for i in (1, 2) for value in (warm[i], end[i])]
        table.add_row(one["process"], *cells)
    return table


if __name__ == "__main__":
    sys.exit(app())
