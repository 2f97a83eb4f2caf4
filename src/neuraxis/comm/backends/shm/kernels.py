"""The collectives of the shared-memory backend, compiled: rounds of write, publish, wait, read.

One round
    A rank writes what others need into its own slot of the segment, publishes its flag for the round, waits for the
    flags of all others, and reads from their slots. Every collective is one or more such rounds.

Why one wait per round is enough
    Slots, headers and flags exist twice, for even and odd rounds. A rank writes its slot of round k + 2 only after it
    has seen every flag of round k + 1, and a rank publishes k + 1 only after it has read all it needs of round k. So no
    rank overwrites data that another still reads, and no second wait is needed.

Why the memory orderings are correct
    The flag is stored with release after header and slot were written, and loaded with acquire before they are read: a
    rank that sees flag k sees header and slot of round k. A reader's last read of round k comes before its release of
    flag k + 1, and the writer acquires that flag before it writes the slot again, so the reads happen before the
    overwrite. The flag's store is also sequentially consistent, for the sleepers (see `atomics`).

Why a kernel can be left and entered again
    A rank that waits in compiled code cannot react to Ctrl-C, deadlines or the death of others. So a kernel spins and
    yields for a bounded time only. If the others have not arrived by then it returns WAITING, with all progress in
    `state`. The caller sleeps on the missing rank's flag, checks deadlines and liveness, and calls again with the same
    arguments; the kernel continues where it was.

`state` is a private array of int64 at a fixed address; the constants below name its words.
"""

from __future__ import annotations

from numba import njit

from neuraxis.compiled import compiled
from neuraxis.compiled.atomics import (
    allocate_file_range,
    call_fold,
    copy_bytes,
    fetch_add,
    load,
    load_acquire,
    load_ordered,
    prefetch,
    relax,
    store,
    store_ordered,
    wake_all,
    yield_counted,
)

__all__ = [
    "GONE",
    "PRESENT",
    "count_sleeper",
    "flag_of",
    "flag_word",
    "get_status",
    "header_of",
    "last_message_address",
    "lengths_of",
    "set_status",
]

# --- what a kernel returns ---
DONE = 0
WAITING = 1  # for state[WAIT_RANK], which has not published yet
MISMATCH = 2  # state[WAIT_RANK] made another call

# --- state: constant after the group is made ---
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
ROUND = 11  # rounds completed in this group
STEP = 12  # rounds completed in this operation
PUBLISHED = 13  # 1 after this rank has published its flag of the round
WAIT_RANK = 14
STEPS = 15  # rounds this operation takes, once known
SEQUENCE = 16  # operations completed in this group
OBJECTS = 17  # address of 2 * SIZE int64: ids of arrays (see array_kernels.py)
# --- state: large slots, allocated when the group first moves more than the small ones hold ---
LARGE_SLOTS = 18  # address of rank 0's even slot
LARGE_SLOT_BYTES = 19  # of one slot; not larger than SLOT_BYTES if there are none, or they are in use
LARGE_OFFSET = 20  # of all of them within the segment
LARGE_BYTES = 21  # of all of them together
DESCRIPTOR = 22  # of the segment
LARGE_STATE = 23  # NOT_ALLOCATED, ALLOCATED or ANNOUNCED
STATE_WORDS = 24

NOT_ALLOCATED = 0  # no rank has needed large slots yet
ALLOCATED = 1  # by this rank, which has not announced it to the others yet
ANNOUNCED = 2  # done, or there is no memory for large slots

# --- a rank's control block: a cache line for even rounds, one for odd rounds, then the rest ---
LINE_BYTES = 64
FLAG = 0  # the round that is published in this line
SIGNATURE = 8  # operation, element type, reduction and root, packed
COUNT = 16  # elements (reductions: must agree; others: for errors only)
NEEDED = 24  # rounds that this rank's data needs
IN_LINE = 32  # from here to the end of the line: the values themselves, if they fit
SLEEPERS = 128  # number of ranks that sleep on this rank's flags
STATUS = 192  # PRESENT or GONE
LARGE_SINCE = 200  # the round in which this rank announced the large slots
LAST_MESSAGE = 256  # the reason why the rank is gone (see failures.py), written before STATUS becomes GONE
LAST_MESSAGE_BYTES = 512
LENGTHS = LAST_MESSAGE + LAST_MESSAGE_BYTES  # for each parity: bytes sent to each rank, bytes expected from each rank

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
    if load(state + 8 * LARGE_STATE) == ALLOCATED:
        store(load(state + 8 * CONTROL) + rank * load(state + 8 * CONTROL_STRIDE) + LARGE_SINCE, current)
        store(state + 8 * LARGE_STATE, ANNOUNCED)
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
                    tries += yield_counted() - 1
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
    if load(state + 8 * SLOT_BYTES) < load(state + 8 * LARGE_SLOT_BYTES):
        _use_large_slots(state)
    return DONE


@njit
def _use_large_slots(state: int) -> None:
    """Switch to the large slots if a rank has announced them in a round that is completed.

    A rank may be a round ahead, so an announcement takes effect from the round that it names: all ranks switch at the
    end of the same operation. No rank reads the large slots before they are written in the next round.
    """
    finished = load(state + 8 * ROUND)
    for rank in range(load(state + 8 * SIZE)):
        since = load(load(state + 8 * CONTROL) + rank * load(state + 8 * CONTROL_STRIDE) + LARGE_SINCE)
        if 0 < since <= finished:
            store(state + 8 * SLOTS, load(state + 8 * LARGE_SLOTS))
            store(state + 8 * SLOT_BYTES, load(state + 8 * LARGE_SLOT_BYTES))
            return


@njit
def _allocate_large_slots(state: int) -> None:
    """Allocate the large slots for later operations, if the system has enough memory."""
    if (
        load(state + 8 * SLOT_BYTES) >= load(state + 8 * LARGE_SLOT_BYTES)
        or load(state + 8 * LARGE_STATE) != NOT_ALLOCATED
    ):
        return
    allocated = allocate_file_range(
        load(state + 8 * DESCRIPTOR), load(state + 8 * LARGE_OFFSET), load(state + 8 * LARGE_BYTES)
    )
    store(state + 8 * LARGE_STATE, ALLOCATED if allocated else ANNOUNCED)


@compiled
def barrier(state: int, signature: int) -> int:
    """Wait until every rank has arrived."""
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
    """Move the pieces that state[PIECES] describes, from each rank to each other, of any lengths.

    With `shared` a rank sends one and the same piece to all (broadcast, gather, all-gather), so it writes it once and
    may use the whole slot; otherwise each destination has its part of the slot. The piece that a rank sends to itself
    is copied directly. Both sides of each pair compare the lengths before anything is read; with `same_count` all ranks
    must have the same number of elements.
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
                if longest > window:
                    _allocate_large_slots(state)
                lengths = lengths_address(state, rank, current)
                for other in range(size):
                    store(lengths + 8 * other, load(send_bytes + 8 * other))
                    store(lengths + 8 * (size + other), load(receive_bytes + 8 * other))
            _publish(state, signature, count, (longest + window - 1) // window)
            # This rank's own piece is copied while the others arrive; the checks below find lengths that differ.
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
    """Run `exchange` with the root sending the same piece to all."""
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
    """Reduce `count` elements at `address` over all ranks, in place on every rank.

    Data that fits into a slot takes one round: every rank reads the values of all. Longer data is split into chunks,
    and each chunk into one slice per rank, which that rank reduces for all. The reduced slices of one chunk are
    distributed in the same round as the values of the next chunk, so a chunk costs one round as well.
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
    # A few bytes fit into the cache line of the flag, which the others read anyway.
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
            # All lines at once: one by one, the fold would wait for each.
            for line in range(0, min(nbytes, PREFETCHED_BYTES), LINE_BYTES):
                prefetch(values + line)
    if _same_call(state, signature, count, True) != DONE:
        return MISMATCH
    call_fold(fold, address, sources, size, count, op, load(state + 8 * SCRATCH))
    _finish_round(state)
    return _finish_operation(state)


@njit
def _slice_of(chunk_count: int, size: int, rank: int) -> tuple[int, int]:
    """Return start and length (elements) of a rank's slice of a chunk, in whole cache lines where possible."""
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
    # A slot holds a chunk's values for the others, followed by this rank's reduced slice.
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
            if step == 0 and chunks > 1:
                _allocate_large_slots(state)
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
    """Reduce each rank's piece for that rank (reduce-scatter). In a reduce, only the root's piece is not empty.

    state[PIECES] holds the addresses and bytes of this rank's contributions to each rank; the first receive address is
    that of this rank's result. A piece must have the same length on every rank.
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
                if longest > window:
                    _allocate_large_slots(state)
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
    """Run `reduce_pieces` with only the root's piece not empty."""
    size = load(state + 8 * SIZE)
    pieces = load(state + 8 * PIECES)
    for other in range(size):
        store(pieces + 8 * other, address)
        store(pieces + 8 * (size + other), count * item_bytes if other == root else 0)
    store(pieces + 16 * size, address)
    return reduce_pieces(state, signature, item_bytes, fold, op)


@compiled
def fold_now(fold: int, out: int, sources: int, n: int, count: int, op: int, scratch: int) -> None:
    """Call a fold on private memory of this process."""
    call_fold(fold, out, sources, n, count, op, scratch)


# --- flags, headers and statuses of other ranks, read between two entries into a kernel ---------------------------

PRESENT, GONE = 0, 1  # status of a rank; after GONE its last message can be read


@compiled
def flag_word(state: int, rank: int) -> int:
    """Return the address of the flag of `rank` that this round waits for."""
    return line_address(state, rank, load(state + 8 * ROUND) + 1) + FLAG


@compiled
def count_sleeper(state: int, rank: int, change: int) -> int:
    """Announce (+1) or withdraw (-1) that this rank sleeps on the flags of `rank`; return the flag as it is then.

    Sequentially consistent, so that either the publisher sees the sleeper or the sleeper sees the flag.
    """
    fetch_add(load(state + 8 * CONTROL) + rank * load(state + 8 * CONTROL_STRIDE) + SLEEPERS, change)
    return load_ordered(flag_word(state, rank))


@njit
def _control_block(state: int, rank: int) -> int:
    return load(state + 8 * CONTROL) + rank * load(state + 8 * CONTROL_STRIDE)


@compiled
def flag_of(state: int, rank: int) -> int:
    """Return the last round that `rank` has published in the line of the current round."""
    return load_acquire(flag_word(state, rank))


@compiled
def header_of(state: int, rank: int) -> tuple[int, int]:
    """Return signature and count of the call that `rank` has published for the current round."""
    line = line_address(state, rank, load(state + 8 * ROUND) + 1)
    return load(line + SIGNATURE), load(line + COUNT)


@compiled
def lengths_of(state: int, rank: int) -> tuple[int, int]:
    """Return the bytes that `rank` sends to this rank in the current round's operation, and expects from it."""
    lengths = lengths_address(state, rank, load(state + 8 * ROUND) + 1)
    me = load(state + 8 * RANK)
    return load(lengths + 8 * me), load(lengths + 8 * (load(state + 8 * SIZE) + me))


@compiled
def last_message_address(state: int, rank: int) -> int:
    """Return the address of the last message of `rank`, which may be read once its status is GONE."""
    return _control_block(state, rank) + LAST_MESSAGE


@compiled
def get_status(state: int, rank: int) -> int:
    """Return the status of `rank`, PRESENT or GONE; acquires, so that its last message can be read after GONE."""
    return load_acquire(_control_block(state, rank) + STATUS)


@compiled
def set_status(state: int, rank: int, status: int) -> None:
    """Set the status of this rank, after its last message was written, and wake the ranks that wait for it."""
    block = _control_block(state, rank)
    store_ordered(block + STATUS, status)
    if load_ordered(block + SLEEPERS) != 0:
        wake_all(block + FLAG)
        wake_all(block + LINE_BYTES + FLAG)
