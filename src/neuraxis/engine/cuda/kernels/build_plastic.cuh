// Plastic synapses: the tables of engine/plastic_tables.py, cut by the blocks that hold their targets. Here a segment is the
// synapses of one source with one delay onto a block, and its synapses are in the CPU's order: by target, and those of one
// target as they were drawn. So whatever is kept of single synapses can go from one to the other.
//
// Nothing is sorted and no synapse is kept twice: the segments are counted, then each block puts in place what its
// targets get, one target after the other. What chance decides is only the order of several synapses between the same
// two neurons with the same delay. A synapse is put down as its number among those of its target, which brings these into
// order, and gives it its weight at last.

__device__ inline u32 *index_of_block(const i64 *job, i64 block) { return (u32 *)job[J_INDEX] + block * (job[J_SEGMENTS] + 1); }

__device__ inline i64 segment_of(const i64 *job, const Inputs &inputs, i64 j, u64 &clipped)
{
    i64 source = drawn_source(job, inputs, j), steps = drawn_delay(job, inputs, j, source, clipped);
    return source * job[J_CLASSES] + ((const int *)job[J_CLASS_OF_DELAY])[steps];
}

// Count the synapses of segment s at place s + 1 of the index, and those of each target. One warp a target.
extern "C" __global__ void count_plastic(const i64 *job)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    u64 clipped = 0;
    for (i64 target = job[J_FIRST] + ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; target < job[J_LAST];
         target += warps) {
        const Inputs inputs = inputs_of(job, target);
        u32 *counts = index_of_block(job, (job[J_FIRST_PLACE] + inputs.local) % job[J_BLOCKS]) + 1;
        i64 count = in_degree(job, inputs);
        if (lane == 0)
            ((u32 *)job[J_IN_DEGREES])[inputs.local] = (u32)count;
        for (i64 j = lane; j < count; j += WARP)
            atomicAdd(counts + segment_of(job, inputs, j, clipped), 1u);
    }
    if (clipped)
        atomicAdd((u64 *)job[J_CLIPPED], clipped);
}

// From numbers to where each segment starts, at the same places; one block of threads for each block of the grid.
extern "C" __global__ void __launch_bounds__(1024) start_plastic(const i64 *job)
{
    SHARED_ROOM(room);
    i64 segments = job[J_SEGMENTS], share = (segments + blockDim.x - 1) / blockDim.x;
    u32 *index = index_of_block(job, blockIdx.x) + 1;
    i64 first = threadIdx.x * share, last = min_of<i64>(first + share, segments);
    u64 sum = 0;
    for (i64 s = first; s < last; s++)
        sum += index[s];
    u64 all, start = sum_before((u64 *)room, sum, all);
    if (threadIdx.x == 0)
        ((u64 *)job[J_TOTALS])[blockIdx.x] = all;
    for (i64 s = first; s < last; s++) {
        u32 size = index[s];
        index[s] = (u32)start;
        start += size;
    }
}

// Put each synapse in its place; segment s then ends where place s + 1 of the index says. One block of threads for each block.
extern "C" __global__ void __launch_bounds__(1024) place_plastic(const i64 *job)
{
    i64 blocks = job[J_BLOCKS], block = blockIdx.x, first = job[J_FIRST_PLACE], last = first + job[J_LAST] - job[J_FIRST];
    u32 *next = index_of_block(job, block) + 1;
    u32 *cells = (u32 *)job[J_TARGET_CELLS] + ((const i64 *)job[J_STARTS])[block];
    u32 *drawn = (u32 *)job[J_DRAWN] + ((const i64 *)job[J_STARTS])[block];
    u64 clipped = 0;
    for (i64 place = first + (block + blocks - first % blocks) % blocks; place < last; place += blocks) {
        const Inputs inputs = inputs_of(job, job[J_FIRST] + place - first);
        u32 count = ((const u32 *)job[J_IN_DEGREES])[inputs.local];
        for (u32 j = threadIdx.x; j < count; j += blockDim.x) {
            u32 at = atomicAdd(next + segment_of(job, inputs, j, clipped), 1u);
            cells[at] = (u32)(place / blocks);
            drawn[at] = j;
        }
        __syncthreads();  // the next target's come after these
    }
}

// Bring what two neurons have in common into order, and put weights for numbers. One warp a segment of a block.
extern "C" __global__ void weigh_plastic(const i64 *job)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    i64 blocks = job[J_BLOCKS], segments = job[J_SEGMENTS];
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < blocks * segments; i += warps) {
        i64 block = i / segments, s = i % segments;
        const u32 *index = index_of_block(job, block), *cells = (const u32 *)job[J_TARGET_CELLS] + ((const i64 *)job[J_STARTS])[block];
        u32 *drawn = (u32 *)job[J_DRAWN] + ((const i64 *)job[J_STARTS])[block];
        u32 start = index[s], end = index[s + 1];
        for (u32 first = start + (u32)lane; first < end; first += WARP) {
            if (first > start && cells[first - 1] == cells[first])
                continue;  // one before it takes care of both
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
            const Inputs inputs = inputs_of(job, job[J_FIRST] + place - job[J_FIRST_PLACE]);
            drawn[at] = f_to_bits((float)drawn_weight(job, inputs, drawn[at], s / job[J_CLASSES]));
        }
    }
}

// --- between the blocks' order and the CPU's, for values of single synapses --------------------------------
// `row` describes the table (T_...); `index` is the CPU's, which has the segments of all blocks as one.

extern "C" __global__ void join_segments(const i64 *row, i64 blocks, u32 *index)
{
    i64 places = row[T_SEGMENTS] + 1;
    for (i64 s = (i64)blockIdx.x * blockDim.x + threadIdx.x; s < places; s += (i64)gridDim.x * blockDim.x) {
        u32 sum = 0;
        for (i64 block = 0; block < blocks; block++)
            sum += ((const u32 *)row[T_INDEX])[block * places + s];
        index[s] = sum;
    }
}

enum { TO_CPU, FROM_CPU, TARGETS_TO_CPU };

// One warp a segment of a block. How many synapses of the other blocks are before one of these is looked up in each of them.
extern "C" __global__ void exchange_with_cpu(const i64 *row, i64 blocks, const u32 *index, u32 *there, u32 *cpu, i64 what)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    i64 segments = row[T_SEGMENTS];
    const i64 *starts = (const i64 *)row[T_STARTS];
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < blocks * segments; i += warps) {
        i64 block = i % blocks, s = i / blocks;
        const u32 *mine = (const u32 *)row[T_INDEX] + block * (segments + 1) + s;
        for (u32 at = mine[0] + (u32)lane; at < mine[1]; at += WARP) {
            u32 cell = ((const u32 *)row[T_CELLS])[starts[block] + at], place = index[s] + at - mine[0];
            for (i64 other = 0; other < blocks; other++) {
                const u32 *its = (const u32 *)row[T_INDEX] + other * (segments + 1) + s;
                const u32 *cells = (const u32 *)row[T_CELLS] + starts[other];
                u32 low = its[0], high = other == block ? low : its[1], next = cell + (other < block);
                while (low < high) {
                    u32 middle = low + (high - low) / 2;
                    if (cells[middle] < next)
                        low = middle + 1;
                    else
                        high = middle;
                }
                place += low - its[0];
            }
            if (what == TARGETS_TO_CPU)
                cpu[place] = (u32)((i64)cell * blocks + block - row[T_POST_PLACE]);
            else if (what == TO_CPU)
                cpu[place] = there[starts[block] + at];
            else
                there[starts[block] + at] = cpu[place];
        }
    }
}

// The sum of the hashes of all weights, as engine/plastic_tables.py has it. One warp a segment of a block.
extern "C" __global__ void hash_plastic(const i64 *row, i64 blocks, const u32 *weights, i64 first_target, u64 salt, u64 *total)
{
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, lane = threadIdx.x % WARP;
    i64 segments = row[T_SEGMENTS];
    u64 sum = 0;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < blocks * segments; i += warps) {
        i64 block = i / segments, s = i % segments, first = ((const i64 *)row[T_STARTS])[block];
        const u32 *mine = (const u32 *)row[T_INDEX] + block * (segments + 1) + s;
        for (u32 at = mine[0] + (u32)lane; at < mine[1]; at += WARP) {
            i64 target = (i64)((const u32 *)row[T_CELLS])[first + at] * blocks + block - row[T_POST_PLACE] + first_target;
            sum += mix(mix(((u64)s << 32 | (u64)target) + GOLDEN * salt) ^ weights[first + at]);
        }
    }
    if (sum)
        atomicAdd(total, sum);
}
