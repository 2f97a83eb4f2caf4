// Build static synapses in two passes that draw the same numbers: the first counts the synapses of each segment, the second
// stores them. Their order within a segment is not deterministic, which does not affect sums of integers.

#include "records.cuh"
#include "tables.cuh"
#include "drawing.cuh"

// Count a weight that the fixed-point scale changes much, and add it to the sum of the weights of its target.
__device__ inline void count_rounding(const Job *job, const Inputs &inputs, double scaled, double rounded)
{
    if (fabs(rounded - scaled) > 0.01 * fabs(scaled)) {  // MUCH of engine/cpu/synapses.py
        atomicAdd(&job->tally->changed, (u64)1);
        if (rounded == 0.0)
            atomicAdd(&job->tally->to_zero, (u64)1);
    }
    if (job->load)
        atomicAdd(job->load + inputs.local, job->most ? job->most : (u64)fabs(rounded) << job->shift);
}

// The place of the first end above i.
__device__ inline i64 first_above(const i64 *ends, i64 count, i64 i)
{
    i64 low = 0, high = count - 1;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (ends[middle] > i)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// One warp per target of all jobs together; `ends` counts the targets of the jobs so far, each included. One launch for each
// job would take longer than the drawing itself where there are many small projections.
extern "C" __global__ void scan_projections(const Job *jobs, const i64 *ends, i64 count_of_jobs)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP, all = ends[count_of_jobs - 1];
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < all; i += warps) {
        i64 which = first_above(ends, count_of_jobs, i);
        const Job *job = jobs + which;
        i64 target = job->last - (ends[which] - i);
        i64 blocks = job->blocks, cells = job->cells, rows = job->rows, storing = job->storing;
        double inverse_lsb = job->inverse_lsb, largest = job->largest;
        u64 *counts = job->segment_counts;
        u64 clipped = 0;
        const Inputs inputs = inputs_of(job, target);
        i64 place = job->first_place + inputs.local, block = place % blocks, cell = place / blocks;
        i64 count = in_degree(job, inputs);
        for (i64 j = lane; j < count; j += WARP) {
            i64 source = drawn_source(job, inputs, j), steps = drawn_delay(job, inputs, j, source, clipped);
            bool urgent = steps == job->urgent;
            i64 row;
            if (source >= job->pre_first && source < job->pre_last) {
                i64 q = job->pre_place + source - job->pre_first;
                row = q % blocks * cells + q / blocks;
            } else
                row = job->pre_outside + source;
            u64 *mine = counts + block * rows + row;
            u64 before = atomicAdd(mine, urgent ? (u64)1 << 32 : (u64)1);
            if (!storing)
                continue;
            double scaled = drawn_weight(job, inputs, j, source) * inverse_lsb;
            double rounded = min_of<double>(max_of<double>(rint(scaled), -largest), largest);
            int fixed = (int)rounded;
            count_rounding(job, inputs, scaled, rounded);
#if WIDE
            fixed = (int)((u32)fixed << job->shift);
#endif
            Word word = packed(fixed, (u32)(job->receptor * cells + cell), (u32)steps);
            Record *record = job->records + (block * rows + row);
            u32 at = urgent ? (u32)(before >> 32) : record->head.urgent + (u32)before;
#if INLINE
            if (at < INLINE) {
                record->words[at] = word;
                continue;
            }
            at -= INLINE;
#endif
            job->words[block][record->head.start + at] = word;
        }
        if (!storing && clipped)
            atomicAdd(&job->tally->clipped, clipped);
    }
}

// Compute the start of each segment and the number of words of each block; one thread block per block of the grid.
extern "C" __global__ void __launch_bounds__(1024) place_segments(const Job *job)
{
    SHARED_ROOM(room);
    i64 rows = job->rows, share = (rows + blockDim.x - 1) / blockDim.x;
    const u64 *counts = job->segment_counts + (i64)blockIdx.x * rows;
    Record *records = job->records + (i64)blockIdx.x * rows;
    i64 first = threadIdx.x * share, last = min_of<i64>(first + share, rows);
    u64 sum = 0, all = 0;
    for (i64 row = first; row < last; row++) {
        u64 size = (counts[row] >> 32) + (counts[row] & 0xFFFFFFFFu);
        sum += size > INLINE ? size - INLINE : 0;
        all += size;
    }
    atomicAdd(job->synapses, all);
    u64 words, start = sum_before((u64 *)room, sum, words);
    if (threadIdx.x == 0)
        job->totals[blockIdx.x] = words;
    for (i64 row = first; row < last; row++) {
        u64 size = (counts[row] >> 32) + (counts[row] & 0xFFFFFFFFu);
        u32 shift = WIDE ? 0 : job->shift_of_row[row];
        records[row].head = Head{(u32)size, shift, (u32)start, (u32)(counts[row] >> 32)};
        start += size > INLINE ? size - INLINE : 0;
    }
}
