"""The harness of the storm: rounds of faults, drawn from a seed, checked one by one, counted.

A *scenario* is a function of a `Room` and a `random.Random`. It starts real processes in the room, injects faults, and
asserts what the documentation promises: survivors raise the documented error within its deadline or go on, states are
equal, nothing is unaccounted. After each round the harness itself checks that nothing is left behind.

Every round has a random generator of its own, made of the seed, the scenario and the number of the round, so that one
round can be run again alone: the report prints the command.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.ranks.marked_processes import MARK

__all__ = ["PARTS", "SCENARIOS", "Report", "Room", "Scenario", "Talker", "run_storm", "scenario"]

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("collectives", "launcher", "simulation", "mesh", "calls", "training", "checkpoints")
LEAVE_S = 20.0  # time for processes to end before they count as leaks


@dataclass(frozen=True)
class Scenario:
    """One kind of storm over one part. `isolated` scenarios need namespaces of their own, which need root."""

    part: str
    name: str
    run: Callable[[Room, random.Random], None]
    isolated: bool = False
    weight: int = 1


SCENARIOS: list[Scenario] = []


def scenario(part: str, *, isolated: bool = False, weight: int = 1) -> Callable[[Any], Any]:
    """Register a scenario; its name is the function's. One of weight n is drawn n times as often as one of weight 1."""

    def register(function: Callable[[Room, random.Random], None]) -> Any:
        SCENARIOS.append(Scenario(part, function.__name__, function, isolated, weight))
        return function

    return register


# --- a room ---


class Talker:
    """A child process that prints lines of JSON and reads lines from its standard input."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self._rest = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def receive(self, limit_s: float = 60.0) -> Any:
        """Return the next line of JSON that the process prints."""
        import select

        assert self.process.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise AssertionError(f"{self.process.args} printed nothing for {limit_s:g} s\n{self.errors()}")
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                raise AssertionError(f"{self.process.args} ended with {self.process.wait()}\n{self.errors()}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def ask(self, word: str, limit_s: float = 60.0) -> Any:
        """Send a line and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()
        return self.receive(limit_s)

    def errors(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self, limit_s: float = 60.0) -> int:
        """Wait for the process to end; return its exit status."""
        try:
            self.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.process.args} did not end within {limit_s:g} s\n{self.errors()}") from None
        return self.process.returncode


class Room:
    """Surroundings of one round: a folder, processes that carry a mark, and the count of injected faults."""

    def __init__(self, folder: Path, isolated: bool) -> None:
        self.folder = folder
        self.isolated = isolated
        self.faults: Counter[str] = Counter()
        self.hostile_frames = 0  # sent by attacks; an attack is one fault
        self.slowest_s = 0.0  # from a fault until the last survivor raised or went on
        self._mark = uuid.uuid4().hex
        self._talkers: list[Talker] = []
        self._mounts: list[Path] = []
        self._started = 0

    def fault(self, kind: str) -> None:
        """Count a fault that is being injected."""
        self.faults[kind] += 1

    def noticed(self, since: float, at: float | None = None) -> None:
        """Note that all survivors had answered a fault of the time `since` by the time `at` (time.monotonic)."""
        self.slowest_s = max(self.slowest_s, (time.monotonic() if at is None else at) - since)

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment for processes of this room."""
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        own = {MARK: self._mark, "PYTHONPATH": path, "TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        return {**os.environ, **own, **variables}

    def start(self, *words: object, before: Callable[[], None] | None = None, **variables: str) -> Talker:
        """Start `python -m words...`, whose standard output is JSON and whose errors go to a file of the room."""
        self._started += 1
        log = self.folder / f"{self._started}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", *map(str, words)],
                cwd=ROOT,
                env=self.environment(**variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=before,
                start_new_session=True,
            )
        talker = Talker(process, log)
        self._talkers.append(talker)
        return talker

    def small_disk(self, megabytes: int, where: Path | None = None, options: str = "") -> Path:
        """Mount a file system of that size; isolated scenarios only."""
        assert self.isolated
        folder = where or self.folder / f"disk-{len(self._mounts)}"
        folder.mkdir(exist_ok=True)
        size = f"size={megabytes}m" + (f",{options}" if options else "")
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True, timeout=20)
        self._mounts.append(folder)
        return folder

    def until(self, condition: Callable[[], Any], what: str, limit_s: float) -> Any:
        """Wait until a condition holds; return its value."""
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {one.process.args}\n{one.errors()}" for one in self._talkers)
                raise AssertionError(f"not within {limit_s:g} s: {what}\n{logs}")
            time.sleep(0.01)
        return found

    def processes(self) -> list[psutil.Process]:
        """Return all living processes that descend from this room, also those that were re-parented."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self._mark:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def leave(self) -> list[str]:
        """End what the round still runs, unmount its disks, and return descriptions of what it left behind.

        Processes that the scenario started itself and did not end are ended here: that is clean-up. Their children
        must then end by themselves.
        """
        for talker in self._talkers:
            if talker.process.poll() is None:
                talker.process.send_signal(signal.SIGCONT)
                talker.process.kill()
            talker.process.communicate()
        deadline = time.monotonic() + LEAVE_S
        while left := self._left():
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        for process in self.processes():
            process.kill()
        for folder in reversed(self._mounts):
            subprocess.run(["umount", "-l", str(folder)], check=False, timeout=20)
        return left

    def _left(self) -> list[str]:
        left = [f"process {one.pid}: {_command(one)}" for one in self.processes()]
        if self.isolated:  # otherwise segments and sockets of other programs would be counted
            left += [f"segment {path}" for path in sorted(Path("/dev/shm").glob("*"))]
            listening = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, timeout=20).stdout
            left += [f"socket {line.strip()}" for line in listening.splitlines()]
        return left


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:160]
    except psutil.NoSuchProcess:
        return "(ended)"


# --- the storm ---


@dataclass
class Report:
    """The counts of a storm."""

    seed: int
    rounds: int = 0
    seconds: float = 0.0
    faults: dict[str, Counter[str]] = field(default_factory=dict)
    hostile_frames: int = 0
    slowest_s: dict[str, float] = field(default_factory=dict)
    rounds_of: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)  # those with a scenario that can run here
    left_out: list[str] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "rounds": self.rounds,
            "seconds": round(self.seconds, 1),
            "faults": {part: dict(sorted(counts.items())) for part, counts in sorted(self.faults.items())},
            "hostile_frames": self.hostile_frames,
            "slowest_s": {part: round(value, 2) for part, value in sorted(self.slowest_s.items())},
            "rounds_of": dict(sorted(self.rounds_of.items())),
            "failures": self.failures,
            "parts": self.parts,
            "left_out": self.left_out,
        }


def run_storm(
    seed: int,
    seconds: float,
    *,
    scenarios: Sequence[Scenario],
    isolated: bool,
    only: tuple[str, int] | None = None,
    tell: Callable[[str], None] = print,
) -> Report:
    """Run rounds until the time is up, at least one of each part; `only` is one round, by scenario and number.

    Parts take turns, so that each has its share however long a round of another takes.
    """
    report = Report(seed)
    usable = [one for one in scenarios if isolated or not one.isolated]
    report.parts = [part for part in PARTS if any(one.part == part for one in usable)]
    report.left_out = sorted(one.name for one in scenarios if one not in usable)
    start = time.monotonic()
    with _temporary() as base:
        if only is not None:
            chosen = next(one for one in usable if one.name == only[0])
            _run_round(report, base, chosen, only[1], isolated, tell)
        else:
            numbers: Counter[str] = Counter()
            for chosen in _draw(seed, usable):
                enough = len(report.rounds_of) >= len(report.parts)
                if enough and time.monotonic() - start > seconds:
                    break
                _run_round(report, base, chosen, numbers[chosen.name], isolated, tell)
                numbers[chosen.name] += 1
    report.seconds = time.monotonic() - start
    return report


def _draw(seed: int, usable: Sequence[Scenario]) -> Iterator[Scenario]:
    """Yield scenarios without end: the parts take turns, the scenarios of a part come in a random order.

    A part's scenarios are dealt like cards, each as often as its weight, before any comes again.
    """
    chance = random.Random(f"{seed} order")
    decks: dict[str, list[Scenario]] = {}
    parts = [part for part in PARTS if any(one.part == part for one in usable)]
    while True:
        for part in parts:
            if not decks.get(part):
                decks[part] = [one for one in usable if one.part == part for _ in range(one.weight)]
                chance.shuffle(decks[part])
            yield decks[part].pop()


def _run_round(
    report: Report, base: Path, chosen: Scenario, number: int, isolated: bool, tell: Callable[[str], None]
) -> None:
    folder = base / f"{chosen.name}-{number}"
    folder.mkdir()
    room = Room(folder, isolated)
    began = time.monotonic()
    problem = ""
    try:
        chosen.run(room, random.Random(f"{report.seed} {chosen.name} {number}"))
    except Exception:
        problem = traceback.format_exc()
    finally:
        if left := room.leave():
            problem += "left behind:\n" + "\n".join(left)
    report.rounds += 1
    report.rounds_of[chosen.part] += 1
    report.faults.setdefault(chosen.part, Counter()).update(room.faults)
    report.hostile_frames += room.hostile_frames
    report.slowest_s[chosen.part] = max(report.slowest_s.get(chosen.part, 0.0), room.slowest_s)
    injected = ", ".join(f"{kind} x{count}" if count > 1 else kind for kind, count in room.faults.items())
    verdict = "FAILED" if problem else "ok"
    tell(f"{chosen.part:12} {chosen.name} {number}: {verdict}, {time.monotonic() - began:.1f} s ({injected})")
    if problem:
        tell(problem)
        again = f"python -m tests.chaos --seed {report.seed} --only {chosen.name}:{number}"
        report.failures.append({"scenario": chosen.name, "number": number, "problem": problem, "again": again})
    else:
        shutil.rmtree(folder)


@contextmanager
def _temporary() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="neuraxis-chaos-"))
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)
