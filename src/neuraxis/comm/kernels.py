"""The collectives of the shared-memory backend, compiled: rounds of write, publish, wait, read.

One round
    A rank writes what others need into its own slot of the arena, publishes its flag for the round, waits
    for the flags of all others, and reads from their slots. Every collective is one or more such rounds.

Why one wait a round is enough
    Slots, headers and flags exist twice, for even and odd rounds. A rank writes its slot of round k + 2 only
    after it has seen every flag of round k + 1, and a rank publishes k + 1 only after it has read all it
    wanted of round k. So nobody overwrites what another still reads, and no second wait is needed.

Why the orderings are right
    The flag is stored with release after header and slot were written, and loaded with acquire before they
    are read: whoever sees flag k sees header and slot of round k. A reader's last read of round k comes before
    its release of flag k + 1, and the writer acquires that flag before it writes the slot again, so the reads
    happen before the overwrite. That the flag's store is also *ordered* is for the sleepers (see `atomics`).

Why a kernel can be left and entered again
    Waiting in compiled code would make a rank deaf to Ctrl-C, to deadlines and to the death of others. A
    kernel therefore spins and yields for a bounded time only; if the others have not come by then it returns
    WAITING, with all progress in `state`. The caller sleeps on the missing rank's flag, checks what needs
    checking, and calls again with the same arguments; the kernel goes on where it was.

`state` is a private array of int64 at a fixed address; what is in it is named by the constants below.
"""

from __future__ import annotations

from numba import njit

from neuraxis.comm.atomics import (
    call_fold,
    copy_bytes,
    load,
    load_acquire,
    load_ordered,
    prefetch,
    relax,
    store,
    store_ordered,
    wake_all,
    yield_cpu,
)
from neuraxis.compiled import compiled

# --- what a kernel returns ---
DONE = 0
WAITING = 1  # state[WAIT_RANK] has not published yet
MISMATCH = 2  # state[WAIT_RANK] made another call

# --- state: fixed when the group is made ---
RANK = 0
SIZE = 1
CONTROL = 2  # address of rank 0's control block
CONTROL_STRIDE = 3
SLOTS = 4  # address of rank 0's even slot; the odd one follows it
SLOT_BYTES = 5  # of one slot
SPINS = 6
YIELDS = 7
SCRATCH = 8  # address of a tile for the folds
SOURCES = 9  # address of SIZE int64: where a fold reads from
PIECES = 10  # address of 4 * SIZE int64: send addresses, send bytes, receive addresses, receive bytes
# --- state: progress ---
ROUND = 11  # rounds finished in this group
STEP = 12  # rounds finished in this operation
PUBLISHED = 13  # this round's flag is out
WAIT_RANK = 14
STEPS = 15  # rounds this operation takes, once known
SEQUENCE = 16  # operations finished in this group
OBJECTS = 17  # address of 2 * SIZE int64: array objects (see array_kernels.py)
STATE_WORDS = 18

# --- a rank's control block: a line for even rounds, one for odd rounds, then the rest ---
LINE_BYTES = 64
FLAG = 0  # the round that is published in this line
SIGNATURE = 8  # operation, element type, reduction and root, packed
COUNT = 16  # elements (reductions: must agree; others: told in errors)
NEEDED = 24  # rounds that this rank's data needs
IN_LINE = 32  # from here to the end of the line: the values themselves, if they are so few
SLEEPERS = 128  # how many ranks sleep on this rank's flags
STATUS = 192  # what the rank says of itself (see shm.py)
LENGTHS = 256  # for each parity: bytes sent to each rank, bytes expected from each rank

ALIGNMENT = 64
PREFETCHED_BYTES = 16384


@njit
def line_address(state: int, rank: int, round_number: int) -> int:
    base = load(state + 8 * CONTROL) + rank * load(state + 8 * CONTROL_STRIDE)
    return base + (round_number & 1) * LINE_BYTES


@njit
def _slot(state: int, rank: int, round_number: int) -> int:
    return load(state + 8 * SLOTS) + (2 * rank + (round_number & 1)) * load(state + 8 * SLOT_BYTES)


@njit
def lengths_address(state: int, rank: int, round_number: int) -> int:
    base = load(state + 8 * CONTROL) + rank * load(state + 8 * CONTROL_STRIDE) + LENGTHS
    return base + (round_number & 1) * 16 * load(state + 8 * SIZE)


@njit
def _publish(state: int, signature: int, count: int, needed: int) -> None:
    rank = load(state + 8 * RANK)
    current = load(state + 8 * ROUND) + 1
    line = line_address(state, rank, current)
    store(line + SIGNATURE, signature)
    store(line + COUNT, count)
    store(line + NEEDED, needed)
    store_ordered(line + FLAG, current)
    if load_ordered(load(state + 8 * CONTROL) + rank * load(state + 8 * CONTROL_STRIDE) + SLEEPERS) != 0:
        wake_all(line + FLAG)
    store(state + 8 * PUBLISHED, 1)
    store(state + 8 * WAIT_RANK, 0)


@njit
def _wait_for_all(state: int) -> int:
    size = load(state + 8 * SIZE)
    current = load(state + 8 * ROUND) + 1
    spins = load(state + 8 * SPINS)
    yields = load(state + 8 * YIELDS)
    rank = load(state + 8 * WAIT_RANK)
    while rank < size:
        flag = line_address(state, rank, current) + FLAG
        if load_acquire(flag) < current:
            tries = 0
            while load_acquire(flag) < current:
                if tries < spins:
                    relax()
                elif tries < spins + yields:
                    yield_cpu()
                else:
                    store(state + 8 * WAIT_RANK, rank)
                    return WAITING
                tries += 1
        rank += 1
    store(state + 8 * WAIT_RANK, size)
    return DONE


@njit
def _same_call(state: int, signature: int, count: int, check_count: bool) -> int:
    current = load(state + 8 * ROUND) + 1
    for rank in range(load(state + 8 * SIZE)):
        line = line_address(state, rank, current)
        if load(line + SIGNATURE) != signature or (check_count and load(line + COUNT) != count):
            store(state + 8 * WAIT_RANK, rank)
            return MISMATCH
    return DONE


@njit
def _finish_round(state: int) -> None:
    store(state + 8 * ROUND, load(state + 8 * ROUND) + 1)
    store(state + 8 * STEP, load(state + 8 * STEP) + 1)
    store(state + 8 * PUBLISHED, 0)


@njit
def _finish_operation(state: int) -> int:
    store(state + 8 * STEP, 0)
    store(state + 8 * SEQUENCE, load(state + 8 * SEQUENCE) + 1)
    return DONE


@compiled
def barrier(state: int, signature: int) -> int:
    """Nobody goes on before everybody has come."""
    if load(state + 8 * PUBLISHED) == 0:
        _publish(state, signature, 0, 0)
    if _wait_for_all(state) != DONE:
        return WAITING
    if _same_call(state, signature, 0, True) != DONE:
        return MISMATCH
    _finish_round(state)
    return _finish_operation(state)


# --- moving data -----------------------------------------------------------------------------------


@compiled
def exchange(state: int, signature: int, count: int, same_count: bool, shared: bool) -> int:
    """Move the pieces that state[PIECES] names: from each rank to each other, of any lengths.

    With `shared` a rank's pieces are one and the same for all (broadcast, gather, all-gather), so it is written
    once and may use the whole slot; otherwise each destination has its part of the slot. What a rank keeps for
    itself is copied directly. Both sides of each pair compare the lengths before anything is read; with
    `same_count` all ranks must have the same number of elements.
    """
    rank = load(state + 8 * RANK)
    size = load(state + 8 * SIZE)
    pieces = load(state + 8 * PIECES)
    send_address, send_bytes = pieces, pieces + 8 * size
    receive_address, receive_bytes = pieces + 16 * size, pieces + 24 * size
    window = load(state + 8 * SLOT_BYTES)
    if not shared:
        window = (window // size) & ~(ALIGNMENT - 1)

    while True:
        step = load(state + 8 * STEP)
        current = load(state + 8 * ROUND) + 1
        offset = step * window
        if load(state + 8 * PUBLISHED) == 0:
            longest = 0
            slot = _slot(state, rank, current)
            written = False
            for to in range(size):
                nbytes = load(send_bytes + 8 * to)
                longest = max(longest, nbytes)
                width = min(window, nbytes - offset)
                if to != rank and width > 0 and not (shared and written):
                    target = slot if shared else slot + to * window
                    copy_bytes(target, load(send_address + 8 * to) + offset, width)
                    written = True
            if step == 0:
                lengths = lengths_address(state, rank, current)
                for other in range(size):
                    store(lengths + 8 * other, load(send_bytes + 8 * other))
                    store(lengths + 8 * (size + other), load(receive_bytes + 8 * other))
            _publish(state, signature, count, (longest + window - 1) // window)
            # What this rank keeps is copied while the others come; lengths that differ are found below.
            own = load(send_bytes + 8 * rank)
            width = min(window, own - offset)
            if width > 0 and own == load(receive_bytes + 8 * rank):
                source_address, target = load(send_address + 8 * rank), load(receive_address + 8 * rank)
                if source_address != target:
                    copy_bytes(target + offset, source_address + offset, width)
        if _wait_for_all(state) != DONE:
            return WAITING
        if step == 0:
            if _same_call(state, signature, count, same_count) != DONE:
                return MISMATCH
            steps = 1
            for other in range(size):
                lengths = lengths_address(state, other, current)
                if load(lengths + 8 * rank) != load(receive_bytes + 8 * other) or load(
                    lengths + 8 * (size + rank)
                ) != load(send_bytes + 8 * other):
                    store(state + 8 * WAIT_RANK, other)
                    return MISMATCH
                steps = max(steps, load(line_address(state, other, current) + NEEDED))
            store(state + 8 * STEPS, steps)
        for source in range(size):
            width = min(window, load(receive_bytes + 8 * source) - offset)
            if width > 0 and source != rank:
                slot = _slot(state, source, current)
                if not shared:
                    slot += rank * window
                copy_bytes(load(receive_address + 8 * source) + offset, slot, width)
        _finish_round(state)
        if step + 1 >= load(state + 8 * STEPS):
            return _finish_operation(state)


@compiled
def broadcast(state: int, signature: int, root: int, address: int, count: int, nbytes: int) -> int:
    """`exchange` in which the root sends the same to all."""
    rank = load(state + 8 * RANK)
    size = load(state + 8 * SIZE)
    pieces = load(state + 8 * PIECES)
    for other in range(size):
        store(pieces + 8 * other, address)
        store(pieces + 8 * (size + other), nbytes if rank == root else 0)
        store(pieces + 8 * (2 * size + other), address)
        store(pieces + 8 * (3 * size + other), nbytes if other == root else 0)
    return exchange(state, signature, count, True, True)


# --- reducing --------------------------------------------------------------------------------------


@compiled
def all_reduce(state: int, signature: int, address: int, count: int, item_bytes: int, fold: int, op: int) -> int:
    """Reduce `count` elements at `address` over all ranks; everybody gets the result in place.

    What fits into a slot takes one round: everybody reads everybody's values. More than that is cut into
    chunks, and each chunk into one slice for each rank, who reduces it for all; the slices of one chunk are
    handed round in the same round as the next chunk's values, so a chunk costs one round as well.
    """
    nbytes = count * item_bytes
    if nbytes <= load(state + 8 * SLOT_BYTES) and (nbytes <= 8192 or load(state + 8 * SIZE) <= 2):
        return _all_reduce_at_once(state, signature, address, count, nbytes, fold, op)
    return _all_reduce_in_slices(state, signature, address, count, item_bytes, fold, op)


@njit
def _all_reduce_at_once(state: int, signature: int, address: int, count: int, nbytes: int, fold: int, op: int) -> int:
    rank = load(state + 8 * RANK)
    size = load(state + 8 * SIZE)
    current = load(state + 8 * ROUND) + 1
    # A few bytes travel in the line of the flag itself, which the others read anyway.
    in_line = nbytes <= LINE_BYTES - IN_LINE
    if load(state + 8 * PUBLISHED) == 0:
        copy_bytes(
            line_address(state, rank, current) + IN_LINE if in_line else _slot(state, rank, current), address, nbytes
        )
        _publish(state, signature, count, 1)
    if _wait_for_all(state) != DONE:
        return WAITING
    sources = load(state + 8 * SOURCES)
    for source in range(size):
        values = line_address(state, source, current) + IN_LINE if in_line else _slot(state, source, current)
        store(sources + 8 * source, values)
        if not in_line and source != rank:
            # All lines at once: one after the other, each would be waited for.
            for line in range(0, min(nbytes, PREFETCHED_BYTES), LINE_BYTES):
                prefetch(values + line)
    if _same_call(state, signature, count, True) != DONE:
        return MISMATCH
    call_fold(fold, address, sources, size, count, op, load(state + 8 * SCRATCH))
    _finish_round(state)
    return _finish_operation(state)


@njit
def _slice_of(chunk_count: int, size: int, rank: int) -> tuple[int, int]:
    """Start and length (elements) of a rank's slice of a chunk, in whole cache lines where possible."""
    width = (chunk_count + size - 1) // size
    width = (width + 15) & ~15
    start = min(rank * width, chunk_count)
    return start, min(width, chunk_count - start)


@njit
def _all_reduce_in_slices(
    state: int, signature: int, address: int, count: int, item_bytes: int, fold: int, op: int
) -> int:
    rank = load(state + 8 * RANK)
    size = load(state + 8 * SIZE)
    # A slot holds a chunk's values for the others, and behind them this rank's finished slice.
    slot_items = load(state + 8 * SLOT_BYTES) // item_bytes
    chunk = max(size * 16, (slot_items * size // (size + 1) // (16 * size)) * 16 * size)
    result_offset = chunk * item_bytes
    chunks = (count + chunk - 1) // chunk
    sources = load(state + 8 * SOURCES)

    while True:
        step = load(state + 8 * STEP)
        current = load(state + 8 * ROUND) + 1
        base = address + step * chunk * item_bytes
        before = base - chunk * item_bytes
        width = min(chunk, count - step * chunk)
        if load(state + 8 * PUBLISHED) == 0:
            slot = _slot(state, rank, current)
            if step < chunks:
                for to in range(size):
                    start, length = _slice_of(width, size, to)
                    if to != rank and length > 0:
                        copy_bytes(slot + start * item_bytes, base + start * item_bytes, length * item_bytes)
            if step > 0:
                start, length = _slice_of(min(chunk, count - (step - 1) * chunk), size, rank)
                if length > 0:
                    copy_bytes(slot + result_offset, before + start * item_bytes, length * item_bytes)
            _publish(state, signature, count, chunks)
        if _wait_for_all(state) != DONE:
            return WAITING
        if step == 0 and _same_call(state, signature, count, True) != DONE:
            return MISMATCH
        if step > 0:
            for source in range(size):
                start, length = _slice_of(min(chunk, count - (step - 1) * chunk), size, source)
                if source != rank and length > 0:
                    copy_bytes(
                        before + start * item_bytes,
                        _slot(state, source, current) + result_offset,
                        length * item_bytes,
                    )
        if step < chunks:
            start, length = _slice_of(width, size, rank)
            if length > 0:
                for source in range(size):
                    store(sources + 8 * source, _slot(state, source, current) + start * item_bytes)
                store(sources + 8 * rank, base + start * item_bytes)
                call_fold(fold, base + start * item_bytes, sources, size, length, op, load(state + 8 * SCRATCH))
        _finish_round(state)
        if step == chunks:
            return _finish_operation(state)


@compiled
def reduce_pieces(state: int, signature: int, item_bytes: int, fold: int, op: int) -> int:
    """Reduce each rank's piece for that rank (reduce-scatter); a reduce is the case in which only the root's
    piece is not empty.

    In state[PIECES]: the address of what this rank contributes to each rank, and its bytes; the first receive
    address says where this rank's own result goes. A piece must have the same length on every rank.
    """
    rank = load(state + 8 * RANK)
    size = load(state + 8 * SIZE)
    pieces = load(state + 8 * PIECES)
    send_address, send_bytes = pieces, pieces + 8 * size
    result = load(pieces + 16 * size)
    total = 0
    receivers = 0
    for to in range(size):
        total += load(send_bytes + 8 * to)
        receivers += 1 if load(send_bytes + 8 * to) > 0 else 0
    window = load(state + 8 * SLOT_BYTES) // max(receivers, 1)
    window = max(window // (ALIGNMENT * item_bytes), 1) * ALIGNMENT * item_bytes
    own = load(send_bytes + 8 * rank)
    sources = load(state + 8 * SOURCES)

    while True:
        step = load(state + 8 * STEP)
        current = load(state + 8 * ROUND) + 1
        offset = step * window
        if load(state + 8 * PUBLISHED) == 0:
            longest = 0
            place = _slot(state, rank, current)
            for to in range(size):
                nbytes = load(send_bytes + 8 * to)
                longest = max(longest, nbytes)
                width = min(window, nbytes - offset)
                if width > 0 and to != rank:
                    copy_bytes(place, load(send_address + 8 * to) + offset, width)
                if nbytes > 0:
                    place += window
            if step == 0:
                lengths = lengths_address(state, rank, current)
                for other in range(size):
                    store(lengths + 8 * other, load(send_bytes + 8 * other))
            store(state + 8 * STEPS, max(1, (longest + window - 1) // window))
            _publish(state, signature, total // item_bytes, load(state + 8 * STEPS))
        if _wait_for_all(state) != DONE:
            return WAITING
        if step == 0:
            if _same_call(state, signature, total // item_bytes, True) != DONE:
                return MISMATCH
            for other in range(size):
                for to in range(size):
                    if load(lengths_address(state, other, current) + 8 * to) != load(send_bytes + 8 * to):
                        store(state + 8 * WAIT_RANK, other)
                        return MISMATCH
        width = min(window, own - offset)
        if width > 0:
            place = 0
            for to in range(rank):
                if load(send_bytes + 8 * to) > 0:
                    place += window
            for source in range(size):
                store(sources + 8 * source, _slot(state, source, current) + place)
            store(sources + 8 * rank, load(send_address + 8 * rank) + offset)
            call_fold(fold, result + offset, sources, size, width // item_bytes, op, load(state + 8 * SCRATCH))
        _finish_round(state)
        if step + 1 >= load(state + 8 * STEPS):
            return _finish_operation(state)


@compiled
def reduce(state: int, signature: int, root: int, address: int, count: int, item_bytes: int, fold: int, op: int) -> int:
    """`reduce_pieces` in which only the root's piece is not empty."""
    size = load(state + 8 * SIZE)
    pieces = load(state + 8 * PIECES)
    for other in range(size):
        store(pieces + 8 * other, address)
        store(pieces + 8 * (size + other), count * item_bytes if other == root else 0)
    store(pieces + 16 * size, address)
    return reduce_pieces(state, signature, item_bytes, fold, op)


@compiled
def fold_now(fold: int, out: int, sources: int, n: int, count: int, op: int, scratch: int) -> None:
    """Call a fold on memory of this process."""
    call_fold(fold, out, sources, n, count, op, scratch)
