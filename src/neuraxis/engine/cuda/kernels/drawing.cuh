// Draw the synapses of a target, with the same numbers as on the CPU (engine/drawing.py, engine/synapses.py). A job describes
// the projection.

enum { ONE_TO_ONE, ALL_TO_ALL, BERNOULLI, IN_DEGREE, LISTED };
enum { CONSTANT, UNIFORM, NORMAL, LOG_NORMAL, VALUES };
#define PURPOSE_CONNECT 3
#define PURPOSE_COUNT 4
#define PURPOSE_WEIGHT 5
#define CELLS_OF_NORMAL 64

__device__ inline double as_double(i64 bits) { return __longlong_as_double(bits); }

__device__ inline double normal(u32 bits, const double *table)
{
    u32 v = (bits & 0x7FFFFFFFu) | 1u;
    int octave = __clz((int)v) - 1;
    u32 scaled = v << (octave + 1);
    u32 mantissa = scaled & 0x7FFFFFFFu;
    i64 cell = (i64)octave * CELLS_OF_NORMAL + (mantissa >> 25);
    double fraction = (double)(mantissa & 0x1FFFFFFu) * 0x1p-25;
    double z = table[2 * cell] + fraction * table[2 * cell + 1];
    return z * (double)(1 - 2 * (i64)(bits >> 31));
}

__device__ inline i64 binomial(i64 n, i64 share, u64 key)
{
    i64 successes = 0, undecided = n, drawn = 0;
    for (int position = 31; position >= 0 && undecided; position--) {
        i64 ones = 0, left = undecided;
        while (left >= 64) {
            ones += __popcll(number(key, drawn));
            drawn++;
            left -= 64;
        }
        if (left > 0) {
            ones += __popcll(number(key, drawn) & (((u64)1 << left) - 1));
            drawn++;
        }
        if (share >> position & 1) {
            successes += undecided - ones;
            undecided = ones;
        } else
            undecided -= ones;
    }
    return successes;
}

__device__ inline i64 distinct(u64 key, i64 j, i64 n)
{
    int bits = 1;
    while (((i64)1 << bits) < n)
        bits++;
    int low = bits / 2, high = bits - low, turns = bits > 6 ? 4 : 12;
    u64 x = (u64)j;
    while (true) {
        u64 left = x >> low, right = x & (((u64)1 << low) - 1);
        for (int turn = 0; turn < turns; turn++) {
            left ^= mix(key + GOLDEN * (right * 32 + (u64)(2 * turn + 1))) >> (64 - high);
            if (low)
                right ^= mix(key + GOLDEN * (left * 32 + (u64)(2 * turn + 2))) >> (64 - low);
        }
        x = left << low | right;
        if (x < (u64)n)
            return (i64)x;
    }
}

__device__ inline double drawn_value(i64 kind, const i64 *p, u32 bits, u64 key, i64 j, const double *table)
{
    if (kind == CONSTANT)
        return as_double(p[0]);
    if (kind == UNIFORM)
        return as_double(p[0]) + (as_double(p[1]) - as_double(p[0])) * ((double)bits * 0x1p-32);
    double drawn = as_double(p[0]) + as_double(p[1]) * normal(bits, table);
    if (kind == LOG_NORMAL)
        drawn = (double)exp_f((float)drawn);
    u64 attempt = 0;
    while (as_double(p[4]) != 0.0 && (drawn < as_double(p[2]) || drawn > as_double(p[3]))) {
        attempt++;
        bits = (u32)(number(mix(key + attempt), j) >> 32);
        drawn = as_double(p[0]) + as_double(p[1]) * normal(bits, table);
        if (kind == LOG_NORMAL)
            drawn = (double)exp_f((float)drawn);
    }
    return drawn;
}

struct Inputs {  // of one target
    i64 target, local, start, n, first;
    u64 key, weight_key;
};

__device__ inline Inputs inputs_of(const i64 *job, i64 target)
{
    Inputs inputs;
    i64 groups = job[J_GROUPS], n_pre = job[J_N_PRE], group = ((target + 1) * groups - 1) / job[J_N_POST];
    inputs.target = target;
    inputs.local = target - job[J_FIRST];
    inputs.start = group * n_pre / groups;
    inputs.n = (group + 1) * n_pre / groups - inputs.start - job[J_NO_SELF];
    inputs.first = job[J_KIND] == LISTED ? ((const i64 *)job[J_LISTED_FIRST])[inputs.local] : 0;
    inputs.key = key_of((u64)job[J_SEED], PURPOSE_CONNECT, (u64)job[J_PROJECTION], (u64)target);
    inputs.weight_key = key_of((u64)job[J_SEED], PURPOSE_WEIGHT, (u64)job[J_PROJECTION], (u64)target);
    return inputs;
}

__device__ inline i64 in_degree(const i64 *job, const Inputs &inputs)
{
    i64 kind = job[J_KIND];
    if (kind == ALL_TO_ALL)
        return inputs.n;
    if (kind == LISTED)
        return ((const i64 *)job[J_LISTED_FIRST])[inputs.local + 1] - inputs.first;
    if (kind == IN_DEGREE)
        return ((const i64 *)job[J_COUNTS])[inputs.local];
    if (kind == BERNOULLI)
        return job[J_SHARE] >> 32 ? inputs.n
                                  : binomial(inputs.n, job[J_SHARE], key_of((u64)job[J_SEED], PURPOSE_COUNT, (u64)job[J_PROJECTION], (u64)inputs.target));
    return 1;
}

// The source of the j-th synapse.
__device__ inline i64 drawn_source(const i64 *job, const Inputs &inputs, i64 j)
{
    i64 kind = job[J_KIND], source;
    if (kind == ONE_TO_ONE)
        return inputs.target;
    if (kind == LISTED)
        return ((const int *)job[J_LISTED])[inputs.first + j];
    if (kind == ALL_TO_ALL) {
        i64 itself = inputs.target - inputs.start;
        return inputs.start + j + (job[J_NO_SELF] != 0 && j >= itself);
    }
    if (job[J_DISTINCT])
        source = inputs.start + distinct(inputs.key, j, inputs.n);
    else
        source = inputs.start + (i64)(((number(inputs.key, j) >> 32) * (u64)inputs.n) >> 32);
    if (job[J_NO_SELF])
        source += source >= inputs.target;
    return source;
}

// The place of the j-th synapse among given weights or delays.
__device__ inline i64 place_among_given(const i64 *job, const Inputs &inputs, i64 j, i64 source)
{
    if (job[J_KIND] == LISTED)
        return ((const i64 *)job[J_LISTED_ORDER])[inputs.first + j];
    return job[J_KIND] == ALL_TO_ALL ? inputs.target * job[J_N_PRE] + source : inputs.target;
}

// The delay of the j-th synapse in steps; counts those that had to be clipped.
__device__ inline i64 drawn_delay(const i64 *job, const Inputs &inputs, i64 j, i64 source, u64 &clipped)
{
    const i64 kind = job[J_DELAY_KIND], *p = job + J_DELAY;
    double delay;
    if (kind == VALUES)
        delay = ((const double *)job[J_DELAY_VALUES])[place_among_given(job, inputs, j, source)];
    else {
        delay = drawn_value(kind, p, (u32)number(inputs.key, j), inputs.key, j, (const double *)job[J_NORMAL_TABLE]);
        if (kind != CONSTANT && (delay < as_double(p[2]) || delay > as_double(p[3]))) {
            clipped++;
            delay = min_of<double>(max_of<double>(delay, as_double(p[2])), as_double(p[3]));
        }
    }
    return min_of<i64>(max_of<i64>((i64)(delay / as_double(job[J_DT]) + 0.5), 1), job[J_LONGEST]);
}

__device__ inline double drawn_weight(const i64 *job, const Inputs &inputs, i64 j, i64 source)
{
    const i64 kind = job[J_WEIGHT_KIND], *p = job + J_WEIGHT;
    if (kind == CONSTANT)
        return as_double(p[0]);
    if (kind == VALUES)
        return ((const double *)job[J_WEIGHT_VALUES])[place_among_given(job, inputs, j, source)];
    u32 bits = (u32)(number(inputs.weight_key, j) >> 32);
    double weight = drawn_value(kind, p, bits, inputs.weight_key, j, (const double *)job[J_NORMAL_TABLE]);
    return min_of<double>(max_of<double>(weight, as_double(p[2])), as_double(p[3]));
}

// Called by all threads of a block: the sum of what those before this one have, and of all. `sums` has room for each.
__device__ inline u64 sum_before(u64 *sums, u64 mine, u64 &all)
{
    sums[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        u64 total = 0;
        for (u32 i = 0; i < blockDim.x; i++) {
            u64 one = sums[i];
            sums[i] = total;
            total += one;
        }
        sums[blockDim.x] = total;
    }
    __syncthreads();
    all = sums[blockDim.x];
    return sums[threadIdx.x];
}

// The in-degrees of a fixed total number of synapses: one level of the tree of engine/listing.py for some projections, one
// warp a node. Of a node's two halves the left one's number takes the place of the node's own.
extern "C" __global__ void split_nodes(const i64 *job)
{
    SHARED_ROOM(room);
    int lane = threadIdx.x % WARP;
    i64 *sums = (i64 *)room + threadIdx.x - lane;
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, level = job[D_LEVEL];
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < job[D_PROJECTIONS] << level; i += warps) {
        const i64 *tree = (const i64 *)job[D_TREES] + (i >> level) * DT_WORDS;
        i64 low = 0, high = tree[DT_N_POST];
        for (i64 turn = level - 1; turn >= 0 && high - low > 1; turn--) {
            i64 middle = (low + high) / 2;
            if (i >> turn & 1)
                low = middle;
            else
                high = middle;
            if (turn && high - low == 1)
                low = high;  // a leaf of a level above
        }
        i64 middle = (low + high) / 2;
        i64 *counts = (i64 *)tree[DT_COUNTS];
        i64 n = high - low > 1 ? counts[low] : 0;
        if (n == 0)
            continue;
        i64 share = ((middle - low) << 32) / (high - low);
        u64 key = key_of((u64)job[D_SEED], PURPOSE_COUNT, (u64)tree[DT_PROJECTION], (u64)(low << 32 | high));
        i64 successes = 0, undecided = n, drawn = 0;
        for (int position = 31; position >= 0 && undecided; position--) {
            i64 words = (undecided + 63) / 64, ones = 0;
            for (i64 k = lane; k < words; k += WARP) {
                u64 bits = number(key, drawn + k);
                i64 left = undecided - 64 * k;
                ones += __popcll(left < 64 ? bits & (((u64)1 << left) - 1) : bits);
            }
            sums[lane] = ones;
            __syncwarp();
            ones = 0;
            for (int k = 0; k < WARP; k++)
                ones += sums[k];
            __syncwarp();
            drawn += words;
            if (share >> position & 1) {
                successes += undecided - ones;
                undecided = ones;
            } else
                undecided -= ones;
        }
        if (lane == 0) {
            counts[low] = successes;
            counts[middle] = n - successes;
        }
    }
}
