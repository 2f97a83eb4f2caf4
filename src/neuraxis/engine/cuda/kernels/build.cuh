// Static synapses: two passes draw the same numbers. The first counts the synapses of each segment, the second puts each in its
// place. Who comes first in a segment is left to chance: a sum of integers does not depend on it.

#include "records.cuh"
#include "drawing.cuh"

// One warp a target.
extern "C" __global__ void scan_projection(const i64 *job)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    i64 blocks = job[J_BLOCKS], cells = job[J_CELLS], rows = job[J_ROWS], placing = job[J_PLACING];
    double inverse_lsb = as_double(job[J_INVERSE_LSB]), largest = as_double(job[J_LARGEST]);
    u64 *counts = (u64 *)job[J_SEGMENT_COUNTS];
    char *records = (char *)job[J_RECORDS];
    u64 clipped = 0;
    for (i64 target = job[J_FIRST] + ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; target < job[J_LAST];
         target += warps) {
        const Inputs inputs = inputs_of(job, target);
        i64 place = job[J_FIRST_PLACE] + inputs.local, block = place % blocks, cell = place / blocks;
        i64 count = in_degree(job, inputs);
        for (i64 j = lane; j < count; j += WARP) {
            i64 source = drawn_source(job, inputs, j), steps = drawn_delay(job, inputs, j, source, clipped);
            bool urgent = steps == job[J_URGENT];
            i64 row;
            if (source >= job[J_PRE_FIRST] && source < job[J_PRE_LAST]) {
                i64 q = job[J_PRE_PLACE] + source - job[J_PRE_FIRST];
                row = q % blocks * cells + q / blocks;
            } else
                row = job[J_PRE_OUTSIDE] + source;
            u64 *mine = counts + block * rows + row;
            u64 before = atomicAdd(mine, urgent ? (u64)1 << 32 : (u64)1);
            if (!placing)
                continue;
            double weight = drawn_weight(job, inputs, j, source);
            int fixed = (int)min_of<double>(max_of<double>(rint(weight * inverse_lsb), -largest), largest);
#if WIDE
            fixed = (int)((u32)fixed << job[J_SHIFT]);
#endif
            Word word = packed(fixed, (u32)(job[J_RECEPTOR] * cells + cell), (u32)steps);
            Record *record = (Record *)(records + (block * rows + row) * (i64)sizeof(Record));
            u32 at = urgent ? (u32)(before >> 32) : record->head.urgent + (u32)before;
#if INLINE
            if (at < INLINE) {
                record->words[at] = word;
                continue;
            }
            at -= INLINE;
#endif
            ((Word *)((const i64 *)job[J_WORDS])[block])[record->head.start + at] = word;
        }
    }
    if (!placing && clipped)
        atomicAdd((u64 *)job[J_CLIPPED], clipped);
}

// Where the words of each segment start, and their number in each block: one block of threads for each block of the grid.
extern "C" __global__ void __launch_bounds__(1024) place_segments(const i64 *job)
{
    SHARED_ROOM(room);
    i64 rows = job[J_ROWS], share = (rows + blockDim.x - 1) / blockDim.x;
    const u64 *counts = (const u64 *)job[J_SEGMENT_COUNTS] + (i64)blockIdx.x * rows;
    Record *records = (Record *)(job[J_RECORDS]) + (i64)blockIdx.x * rows;
    i64 first = threadIdx.x * share, last = min_of<i64>(first + share, rows);
    u64 sum = 0, all = 0;
    for (i64 row = first; row < last; row++) {
        u64 size = (counts[row] >> 32) + (counts[row] & 0xFFFFFFFFu);
        sum += size > INLINE ? size - INLINE : 0;
        all += size;
    }
    atomicAdd((u64 *)job[J_SYNAPSES], all);
    u64 words, start = sum_before((u64 *)room, sum, words);
    if (threadIdx.x == 0)
        ((u64 *)job[J_TOTALS])[blockIdx.x] = words;
    for (i64 row = first; row < last; row++) {
        u64 size = (counts[row] >> 32) + (counts[row] & 0xFFFFFFFFu);
        u32 shift = WIDE ? 0 : ((const u8 *)job[J_SHIFT_OF_ROW])[row];
        records[row].head = Head{(u32)size, shift, (u32)start, (u32)(counts[row] >> 32)};
        start += size > INLINE ? size - INLINE : 0;
    }
}
