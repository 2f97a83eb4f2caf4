"""Feed every decoder that reads bytes from outside with malformed input.

    python benchmarks/fuzz.py --cases 1000000
    python benchmarks/fuzz.py --target "mesh values" --seed 3 --case 17041     # one case again

The corpus of each target comes from the real encoders. A case is a mutation of it and follows from the seed, the target
and the number of the case alone, so that each can be repeated by itself. The targets run in child processes under a
limit of memory. A case fails if an error escapes that the decoder does not document, if the process crashes, does not
answer, or takes more memory than its bound. It exits with status 1 if a case has failed.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from fuzz_targets import TARGETS, Target

HERE = Path(__file__)
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where files are soon written
PATIENCE_S = 60.0  # without a finished case: on a busy machine a process may not run for a while
SLOW_S = 5.0  # of CPU time in one case
MORE_ADDRESSES = 768 * 2**20  # beyond those that a process has when its target is prepared
MORE_BYTES = 192 * 2**20  # of resident memory, over all cases of a target: the allocator keeps some
MOST_FAILURES = 5  # of a target, after which the rest of its cases is left out

app = App(help=__doc__, help_format="plaintext", version_flags=[])


@dataclass
class Failure:
    target: str
    case: int
    seed: int
    what: str


@dataclass
class Outcome:
    """Counts of one target: all cases, those that decoded to something, and those that were refused as documented."""

    target: str
    cases: int = 0
    decoded: int = 0
    refused: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)


# --- mutations ----------------------------------------------------------------------------------------------

_NUMBERS = [
    *(0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 4095, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**32, 2**40, 2**53, 2**60, 2**61 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 8),
]
# Beginnings of msgpack values that claim more than follows, and pieces of JSON, TOML and CSV.
_PIECES = [
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"),
    *(b"\xc9\xff\xff\xff\xff\x06", b"\xdc\xff\xff" * 50, b"\x91" * 2000, b"\x81\xa0" * 500, b"\xc1", b"\xd9\xff"),
    *(b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", b"\xd3\x80\0\0\0\0\0\0\0", b"\xcb\x7f\xf8\0\0\0\0\0\0"),
    *(b"[" * 3000, b'{"a":' * 1500, b"1" * 5000, b"1e999", b"-0", b"nan", b"inf", b"null", b"true", b'""', b"\\ud800"),
    *(b"../../", b"/dev/zero", b"\0", b"\xff\xfe", b"\n", b",", b'"', b"=", b"[[", b"]]", b"%s", b"-1", b"9" * 11),
]  # fmt: skip


def mutated(corpus: list[bytes], seed: int, target: str, case: int) -> bytes:
    """Return the input of a case."""
    chance = random.Random(f"{seed}/{target}/{case}")
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5, 9))):
        _mutate(data, chance, corpus)
    return bytes(data[: 1 << 20])


def _mutate(data: bytearray, chance: random.Random, corpus: list[bytes]) -> None:
    place = chance.randrange(len(data) + 1)
    end = min(len(data), place + chance.choice((1, 2, 4, 8, 16, 64, 256)))
    match chance.randrange(11):
        case 0 if place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        case 1 if place < len(data):
            data[place] = chance.choice((0, 1, 0x7F, 0x80, 0xC1, 0xFE, 0xFF, chance.randrange(256)))
        case 2:
            del data[place:end]
        case 3:
            data[place:place] = data[place:end] * chance.choice((1, 2, 10))
        case 4:
            data[place:place] = chance.choice(_PIECES)
        case 5:
            data[place:end] = chance.choice(_PIECES)
        case 6:
            number = chance.choice(_NUMBERS) + chance.choice((0, 0, -1, 1))
            size = chance.choice((1, 2, 4, 8))
            order = chance.choice(("little", "big"))
            data[place : place + size] = (number % 2 ** (8 * size)).to_bytes(size, order)
        case 7:
            other = chance.choice(corpus)
            start = chance.randrange(len(other) + 1)
            data[place:end] = other[start : start + chance.choice((4, 16, 64, 1024))]
        case 8:
            del data[place:]
        case 9:
            data[place:end] = str(chance.choice(_NUMBERS) * chance.choice((1, -1))).encode()
        case _:
            data[place:end] = chance.randbytes(end - place)


# --- in a child ---------------------------------------------------------------------------------------------


@app.command(show=False)
def child(work: str, seed: int) -> None:
    """Run cases of some targets: [[name, first, last], ...]; print the outcome of each as a line of JSON."""
    progress = os.open(os.environ["FUZZ_PROGRESS"], os.O_RDWR)
    shared = mmap.mmap(progress, 16)
    for name, first, last in json.loads(work):
        target = TARGETS[name]
        with tempfile.TemporaryDirectory(dir=os.environ["FUZZ_FOLDER"]) as folder:
            prepared = target.prepare(Path(folder))
            for data in prepared.corpus:  # a corpus that cannot be decoded would try nothing
                prepared.decode(data)
            _limit_addresses(MORE_ADDRESSES)
            outcome = _run(target, prepared, seed, first, last, shared)
            _limit_addresses(None)
        print(f"\nfuzz:{json.dumps(asdict(outcome))}", flush=True)


def _run(target: Target, prepared: Any, seed: int, first: int, last: int, shared: mmap.mmap) -> Outcome:
    outcome = Outcome(target.name)
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case in range(first, last):
        struct.pack_into("<q", shared, 0, case)
        data = mutated(prepared.corpus, seed, target.name, case)
        used = time.process_time()
        wrong = ""
        try:
            prepared.decode(data)
            outcome.decoded += 1
        except prepared.allowed as error:
            outcome.refused += 1
            if (out := _memory_error(error)) is not None:
                wrong = f"more memory than its bound: {out}"
        except BaseException as error:
            wrong = f"{type(error).__module__}.{type(error).__qualname__}: {error!s:.300}"
        used = time.process_time() - used
        outcome.cases += 1
        if not wrong and used > SLOW_S:
            wrong = f"{used:.1f} s of CPU time"
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        if not wrong and grown > MORE_BYTES:
            wrong = f"{grown >> 20} MB more of resident memory"
        if wrong:
            outcome.failures.append(Failure(target.name, case, seed, wrong))
            if len(outcome.failures) >= MOST_FAILURES:
                break
    outcome.seconds = time.monotonic() - began
    struct.pack_into("<q", shared, 0, last)
    return outcome


def _memory_error(error: BaseException | None) -> BaseException | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, MemoryError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _limit_addresses(more: int | None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if more is None:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))


# --- the parent ---------------------------------------------------------------------------------------------


@app.default
def fuzz(
    *,
    cases: int = 1_000_000,
    seed: int = 1,
    jobs: int = 2,
    target: Annotated[list[str] | None, Parameter(negative=())] = None,
    case: int | None = None,
    json: Annotated[bool, Parameter(negative=(), name="--json")] = False,
) -> int:
    """Run the cases, or one of them.

    Parameters
    ----------
    cases
        How many in total; each target gets a share by its speed.
    target
        Only these, by name.
    case
        Only this one, here, with its traceback.
    """
    wanted = [TARGETS[name] for name in target] if target else list(TARGETS.values())
    if case is not None:
        return _repeat(wanted[0], seed, case)
    whole = sum(one.share for one in wanted)
    shares = {one.name: max(1, -(-cases * one.share // whole)) for one in wanted}
    groups: dict[str, list[list[Any]]] = {}
    for one in wanted:
        groups.setdefault(one.process, []).append([one.name, 0, shares[one.name]])
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda work: _supervise(work, seed), groups.values()))
    outcomes = [one for some in found for one in some]
    failures = [failure for one in outcomes for failure in one.failures]
    if json:
        print(_json({"cases": sum(one.cases for one in outcomes), "outcomes": [asdict(one) for one in outcomes]}))
    else:
        for one in outcomes:
            print(
                f"{one.target:28} {one.cases:9,} cases  {one.decoded:9,} decoded  {one.refused:9,} refused"
                f"  {1e6 * one.seconds / max(1, one.cases):7.0f} us each  {len(one.failures)} failed"
            )
        print(f"{sum(one.cases for one in outcomes):,} cases, {len(failures)} failures, seed {seed}")
        for failure in failures:
            print(f"FAILED --target {failure.target!r} --seed {seed} --case {failure.case}: {failure.what}")
    return 1 if failures else 0


def _json(value: Any) -> str:
    return json.dumps(value, indent=1)


def _supervise(work: list[list[Any]], seed: int) -> list[Outcome]:
    """Run targets in a child process; if it dies or hangs, its case fails and another child continues after it."""
    outcomes: dict[str, Outcome] = {name: Outcome(name) for name, _, _ in work}
    left = [list(one) for one in work]
    # The folder is the parent's, so that a child that was killed leaves nothing.
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY) as folder,
        tempfile.NamedTemporaryFile(dir=folder) as progress,
    ):
        progress.truncate(16)
        shared = mmap.mmap(progress.fileno(), 16)
        while left:
            struct.pack_into("<q", shared, 0, left[0][1] - 1)
            done, how = _run_child(left, seed, progress.name, shared)
            for line in done:
                one = outcomes[line["target"]]
                one.cases += line["cases"]
                one.decoded += line["decoded"]
                one.refused += line["refused"]
                one.seconds += line["seconds"]
                one.failures += [Failure(**failure) for failure in line["failures"]]
                left = [work for work in left if work[0] != line["target"]]
            if not left or not how:
                break
            name, first, last = left[0]
            (case,) = struct.unpack_from("<q", shared)
            one = outcomes[name]
            one.failures.append(Failure(name, case, seed, how))
            one.cases += max(0, case + 1 - first)
            if case < first or len(one.failures) >= MOST_FAILURES or case + 1 >= last:
                left.pop(0)
            else:
                left[0][1] = case + 1
    return list(outcomes.values())


def _run_child(work: list[list[Any]], seed: int, progress: str, shared: mmap.mmap) -> tuple[list[dict[str, Any]], str]:
    """Return the outcomes of the completed targets, and the exit of the child if it failed."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, str(HERE), "child", json.dumps(work), str(seed)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            env={
                **os.environ,
                "FUZZ_PROGRESS": progress,
                "FUZZ_FOLDER": str(Path(progress).parent),
                "PYTHONFAULTHANDLER": "1",
            },
        )
        how = ""
        try:
            last, since = b"", time.monotonic()
            while process.poll() is None:
                time.sleep(0.1)
                if bytes(shared[:8]) != last:
                    last, since = bytes(shared[:8]), time.monotonic()
                elif time.monotonic() - since > PATIENCE_S + (120 if last in (b"", b"\xff" * 8) else 0):
                    how = f"no answer within {PATIENCE_S:g} s"
                    break
        finally:
            process.kill()
            process.wait()
        if not how and process.returncode:
            code = process.returncode
            how = f"crashed: {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        output.seek(0)
        return [json.loads(line[5:]) for line in output if line.startswith("fuzz:")], how


def _repeat(target: Target, seed: int, case: int) -> int:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY) as folder:
        prepared = target.prepare(Path(folder))
        data = mutated(prepared.corpus, seed, target.name, case)
        print(f"{len(data)} bytes: {data[:400]!r}")
        _limit_addresses(MORE_ADDRESSES)
        print(repr(prepared.decode(data))[:400])
    return 0


if __name__ == "__main__":
    sys.exit(app())
