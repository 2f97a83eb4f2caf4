// Build the tables of engine/cpu/plastic_tables.py, divided among the blocks that hold the targets. A segment holds the synapses
// of one source with one delay onto a block, in the order of the CPU: by target, and those of one target as they were drawn.
// Values of single synapses can therefore be copied between both.
//
// Nothing is sorted and no synapse is stored twice: after counting the segments, each block stores the synapses of its targets,
// target by target. Only the order of several synapses between the same two neurons with the same delay is not deterministic.
// A synapse is first stored as its number among those of its target, by which they are ordered, and then as its weight.

__device__ inline u32 *index_of_block(const Job *job, i64 block) { return job->index + block * (job->segments + 1); }

__device__ inline i64 segment_of(const Job *job, const Inputs &inputs, i64 j, u64 &clipped)
{
    i64 source = drawn_source(job, inputs, j), steps = drawn_delay(job, inputs, j, source, clipped);
    return source * job->classes + job->class_of_delay[steps];
}

// Count the synapses of segment s in index[s + 1], and those of each target. One warp per target.
extern "C" __global__ void count_plastic(const Job *job)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    u64 clipped = 0;
    for (i64 target = job->first + ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; target < job->last;
         target += warps) {
        const Inputs inputs = inputs_of(job, target);
        u32 *counts = index_of_block(job, (job->first_place + inputs.local) % job->blocks) + 1;
        i64 count = in_degree(job, inputs);
        if (lane == 0)
            job->in_degrees[inputs.local] = (u32)count;
        for (i64 j = lane; j < count; j += WARP)
            atomicAdd(counts + segment_of(job, inputs, j, clipped), 1u);
    }
    if (clipped)
        atomicAdd(&job->tally->clipped, clipped);
}

// Turn the counts into the starts of the segments, in place; one thread block per block of the grid.
extern "C" __global__ void __launch_bounds__(1024) index_plastic(const Job *job)
{
    SHARED_ROOM(room);
    u64 all = index_segments((u64 *)room, index_of_block(job, blockIdx.x), job->segments);
    if (threadIdx.x == 0)
        job->totals[blockIdx.x] = all;
}

// Store each synapse; segment s then ends at index[s + 1]. One thread block per block of the grid.
extern "C" __global__ void __launch_bounds__(1024) store_plastic(const Job *job)
{
    i64 blocks = job->blocks, block = blockIdx.x, first = job->first_place, last = first + job->last - job->first;
    u32 *next = index_of_block(job, block) + 1;
    u32 *cells = job->target_cells + job->starts[block];
    u32 *drawn = job->drawn + job->starts[block];
    u64 clipped = 0;
    for (i64 place = first + (block + blocks - first % blocks) % blocks; place < last; place += blocks) {
        const Inputs inputs = inputs_of(job, job->first + place - first);
        u32 count = job->in_degrees[inputs.local];
        for (u32 j = threadIdx.x; j < count; j += blockDim.x) {
            u32 at = atomicAdd(next + segment_of(job, inputs, j, clipped), 1u);
            cells[at] = (u32)(place / blocks);
            drawn[at] = j;
        }
        __syncthreads();  // the synapses of the next target follow
    }
}

// Order multapses, and replace numbers by weights. One warp per segment of a block.
extern "C" __global__ void set_plastic_weights(const Job *job)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    i64 blocks = job->blocks, segments = job->segments;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < blocks * segments; i += warps) {
        i64 block = i / segments, s = i % segments;
        const u32 *index = index_of_block(job, block), *cells = job->target_cells + job->starts[block];
        u32 *drawn = job->drawn + job->starts[block];
        u32 start = index[s], end = index[s + 1];
        for (u32 first = start + (u32)lane; first < end; first += WARP) {
            if (first > start && cells[first - 1] == cells[first])
                continue;  // handled by an earlier one
            for (u32 last = first + 1; last < end && cells[last] == cells[first]; last++) {
                u32 one = drawn[last], at = last;
                for (; at > first && drawn[at - 1] > one; at--)
                    drawn[at] = drawn[at - 1];
                drawn[at] = one;
            }
        }
        __syncwarp();
        for (u32 at = start + (u32)lane; at < end; at += WARP) {
            i64 place = (i64)cells[at] * blocks + block;
            const Inputs inputs = inputs_of(job, job->first + place - job->first_place);
            float weight = (float)drawn_weight(job, inputs, drawn[at], s / job->classes);
            double scaled = (double)weight * job->inverse_lsb;
            count_rounding(job, inputs, scaled, rint(scaled));
            drawn[at] = f_to_bits(weight);
        }
    }
}

// --- values of single synapses between the order of the blocks and that of the CPU --------------------------------
// `row` describes the table; `index` is that of the CPU, which joins the segments of all blocks.

extern "C" __global__ void join_segments(const PlasticTable *row, i64 blocks, u32 *index)
{
    i64 places = row->segments + 1;
    for (i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x; s < places; s += (i64)gridDim.x * blockDim.x) {
        u32 sum = 0;
        for (i64 block = 0; block < blocks; block++)
            sum += row->index[block * places + s];
        index[s] = sum;
    }
}

enum { TO_CPU, FROM_CPU, TARGETS_TO_CPU };

// One warp per segment of a block. The number of preceding synapses in other blocks is looked up in each of them.
extern "C" __global__ void exchange_with_cpu(const PlasticTable *row, i64 blocks, const u32 *index, u32 *there, u32 *cpu, i64 what)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    i64 segments = row->segments;
    const i64 *starts = row->starts;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < blocks * segments; i += warps) {
        i64 block = i % blocks, s = i / blocks;
        const u32 *mine = row->index + block * (segments + 1) + s;
        for (u32 at = mine[0] + (u32)lane; at < mine[1]; at += WARP) {
            u32 cell = row->cells[starts[block] + at], place = index[s] + at - mine[0];
            for (i64 other = 0; other < blocks; other++) {
                const u32 *theirs = row->index + other * (segments + 1) + s;
                const u32 *cells = row->cells + starts[other];
                u32 low = theirs[0], high = other == block ? low : theirs[1], next = cell + (other < block);
                while (low < high) {
                    u32 middle = low + (high - low) / 2;
                    if (cells[middle] < next)
                        low = middle + 1;
                    else
                        high = middle;
                }
                place += low - theirs[0];
            }
            if (what == TARGETS_TO_CPU)
                cpu[place] = (u32)((i64)cell * blocks + block - row->post_place);
            else if (what == TO_CPU)
                cpu[place] = there[starts[block] + at];
            else
                there[starts[block] + at] = cpu[place];
        }
    }
}

// The sum of the hashes of all weights, as in engine/cpu/plastic_tables.py. One warp per segment of a block.
extern "C" __global__ void hash_plastic(const PlasticTable *row, i64 blocks, const u32 *weights, i64 first_target, u64 salt, u64 *total)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    i64 segments = row->segments;
    u64 sum = 0;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < blocks * segments; i += warps) {
        i64 block = i / segments, s = i % segments, first = row->starts[block];
        const u32 *mine = row->index + block * (segments + 1) + s;
        for (u32 at = mine[0] + (u32)lane; at < mine[1]; at += WARP) {
            i64 target = (i64)row->cells[first + at] * blocks + block - row->post_place + first_target;
            sum += mix(mix(((u64)s << 32 | (u64)target) + GOLDEN * salt) ^ weights[first + at]);
        }
    }
    if (sum)
        atomicAdd(total, sum);
}
