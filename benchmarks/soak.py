"""Soak test: nodes publish at 1 kHz while one is killed and restarted every ten seconds; a brain runs at the same time.

    python benchmarks/soak.py --minutes 10

Two publishers, two subscribers and the victim (which publishes and subscribes, and joined the mesh first) are separate
processes. At the end every message must be accounted for:

- Received plus reported-lost messages of each incarnation of each publisher equal the messages that it sent. Only the
  first and last messages of a killed publisher may be missing; their number is known from its own count.
- Memory, threads and descriptors of the surviving processes do not grow after the first cycles.
- In the brain (three regions in lockstep, one of them killed and restarted from its last state) the downstream regions
  record every absence, and at the end all regions receive each other again.

It exits with status 1 if one of these does not hold.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import psutil
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from neuraxis.mesh.topology import LEASE_MS
from soak_nodes import TOPICS, read_counts
from soak_usage import Sample, sample, usage

HERE = Path(__file__).parent
SPEAKERS, HEARERS, VICTIM = ("speaker-1", "speaker-2"), ("hearer-1", "hearer-2"), "victim"
AWAY_S = 1.0  # how long one that was killed stays away
LIMIT_S = 60.0
STARVED_S = LEASE_MS / 2000  # half of the time after which a process that gives no sign of life counts as gone

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
        self.samples: list[Sample] = []

    def receive(self, limit_s: float = LIMIT_S) -> Any:
        assert self._popen.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._popen.stdout], [], [], left)[0]:
                raise RuntimeError(f"{self.name} sent nothing in time")
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
        return self.receive()

    def kill(self) -> None:
        self._popen.kill()
        self._popen.communicate()


# --- the nodes ---


class Nodes:
    """The publishers, the subscribers and the victim, and their counts."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._mesh = f"soak-{os.getpid()}"
        self.kills = 0
        self.victims: list[Path] = []
        self.victim = self._start("speak", VICTIM, self._next_life())
        self.victim.receive()
        self.hearers = {name: self._start("hear", name) for name in HEARERS}
        for one in self.hearers.values():
            one.receive()
        self.speakers = {name: self._start("speak", name, folder / name) for name in SPEAKERS}
        for one in self.speakers.values():
            one.receive()
        for one in (self.victim, *self.speakers.values()):
            one.receive()

    @property
    def survivors(self) -> list[Process]:
        return [*self.speakers.values(), *self.hearers.values()]

    def kill_victim(self) -> None:
        self.victim.kill()
        self.kills += 1

    def return_victim(self) -> None:
        self.victim = self._start("speak", VICTIM, self._next_life())
        self.victim.receive()
        self.victim.receive()

    def finish(self) -> None:
        """Stop all, and publish a few more messages until all subscribers have received the last ones or time out."""
        speakers = [*self.speakers.values(), self.victim]
        for one in speakers:
            one.ask("stop")
        for _ in range(50):
            sent = [one.ask("more") for one in speakers]
            time.sleep(0.1)
            if all(self._heard_all(one.ask()["streams"], sent) for one in self.hearers.values()):
                return

    def accounts(self) -> list[dict[str, Any]]:
        """Return, for each subscriber and each incarnation of each publisher, the sent, received and lost messages."""
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
    """Compare the node's own counts with the sum of the accounted messages."""
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


# --- what the brain recorded ---


def check_brain(found: dict[str, Any]) -> list[str]:
    """Check that the downstream regions of the killed region recorded each of its absences and have recovered.

    A region whose threads get no core for most of a second counts as absent, too: it sends no sign of life. More
    absences than kills are accepted if the kernel has counted such a wait in the steps before.
    """
    faults = [] if found["whole"] else ["not all regions hear each other at the end"]
    for region, story in found["stories"].items():
        for other, heard in story["upstream"].items():
            silences = heard["silences"]
            expected = found["kills"] if other == "cortex" else 0
            excused = sum(_was_starved(first, found.get("starved", ())) for first, *_ in silences)
            if region != "cortex" and not expected <= len(silences) <= expected + excused:
                faults.append(f"{region} recorded {len(silences)} absences of {other}, which had {expected}")
            ends = [step for first, last, _ in silences for step in (first, last)]
            if None in ends or ends != sorted(ends):
                faults.append(f"{region}: the absences of {other} are not in order: {silences}")
            if heard["lost"]:
                faults.append(f"{region}: {heard['lost']} steps of {other} are lost")
    return faults


def _was_starved(step: int, waits: Sequence[Sequence[float]]) -> bool:
    """Return True if a region waited for a core in the sample at which a step was reached, or in the one before."""
    near = [
        wait for number, (first, last, wait) in enumerate(waits)
        if first < step <= last or (number + 1 < len(waits) and waits[number + 1][0] < step <= waits[number + 1][1])
    ]  # fmt: skip
    return max(near, default=0.0) > STARVED_S


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
    """Run the soak test; return the findings, with all `faults` in one list."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        brain = Process("soak_brain.py", str(seconds), str(every_s))
        stack.callback(brain.kill)
        nodes = Nodes(Path(folder), stack)
        begun = time.monotonic()
        for second in range(1, round(seconds) + 1):
            time.sleep(max(0.0, begun + second - time.monotonic()))
            survivors = nodes.survivors
            used = sample([one.usage for one in survivors], time.monotonic() - begun)
            for one, taken in zip(survivors, used, strict=True):
                one.samples.append(taken)
            away = second % every_s
            if away == 0 and second + every_s <= seconds:
                nodes.kill_victim()
            elif away == AWAY_S and second > every_s:
                nodes.return_victim()
        nodes.finish()
        accounts = nodes.accounts()
        ran = brain.receive(3 * LIMIT_S)
        survived = {one.name: one.samples for one in nodes.survivors}
        survived |= {f"brain: {name}": samples for name, samples in ran.pop("resources").items()}
        kills = nodes.kills
    # What is kept of the past is full after some cycles: a state's last messages, a region's journal.
    warm_s = min(2 * every_s, seconds / 3) if seconds < 300 else 120.0
    grown = [usage(name, samples, warm_s) for name, samples in survived.items()]
    faults = [
        f"{one['hearer']} of {one['speaker']}/{one['topic']}: {text}" for one in accounts for text in one["faults"]
    ]
    faults += [f"{one['process']}: {text}" for one in grown for text in one["faults"]]
    faults += [f"brain: {text}" for text in check_brain(ran)]
    return {
        "seconds": seconds, "kills": kills, "accounts": accounts, "usage": grown, "brain": ran, "faults": faults,
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
    kinds = ("threads", "descriptors", "Zenoh's threads", "links")
    for name in ("MiB warm", "end", *(word for kind in kinds for word in (f"{kind} warm", "end"))):
        table.add_column(name, justify="right")
    for one in found["usage"]:
        warm, end = one["warm"], one["end"]
        cells = [f"{warm[0] / 2**20:.1f}", f"{end[0] / 2**20:.1f}"]
        cells += [f"{value:g}" for i in range(1, 5) for value in (warm[i], end[i])]
        table.add_row(one["process"], *cells)
    return table


if __name__ == "__main__":
    sys.exit(app())
