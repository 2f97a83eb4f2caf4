// Draw the synapses of a target, with the same random numbers as on the CPU (engine/cpu/synapses.py). A job describes the
// projection.

enum { ONE_TO_ONE, ALL_TO_ALL, BERNOULLI, IN_DEGREE, LISTED };
enum { CONSTANT, UNIFORM, NORMAL, LOG_NORMAL, VALUES };
#define PURPOSE_CONNECT 3
#define PURPOSE_COUNT 4
#define PURPOSE_WEIGHT 5
#define CELLS_OF_NORMAL 64

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

__device__ inline double drawn_value(i64 kind, const double *p, u32 bits, u64 key, i64 j, const double *table)
{
    if (kind == CONSTANT)
        return p[0];
    if (kind == UNIFORM)
        return p[0] + (p[1] - p[0]) * ((double)bits * 0x1p-32);
    double drawn = p[0] + p[1] * normal(bits, table);
    if (kind == LOG_NORMAL)
        drawn = (double)exp_f((float)drawn);
    u64 attempt = 0;
    while (p[4] != 0.0 && (drawn < p[2] || drawn > p[3])) {
        attempt++;
        bits = (u32)(number(mix(key + attempt), j) >> 32);
        drawn = p[0] + p[1] * normal(bits, table);
        if (kind == LOG_NORMAL)
            drawn = (double)exp_f((float)drawn);
    }
    return drawn;
}

struct Inputs {  // of one target
    i64 target, local, start, n, first;
    u64 key, weight_key;
};

__device__ inline Inputs inputs_of(const Job *job, i64 target)
{
    Inputs inputs;
    i64 groups = job->groups, n_pre = job->n_pre, group = ((target + 1) * groups - 1) / job->n_post;
    inputs.target = target;
    inputs.local = target - job->first;
    inputs.start = group * n_pre / groups;
    inputs.n = (group + 1) * n_pre / groups - inputs.start - job->no_self;
    inputs.first = job->kind == LISTED ? job->listed_first[inputs.local] : 0;
    inputs.key = key_of(job->seed, PURPOSE_CONNECT, (u64)job->projection, (u64)target);
    inputs.weight_key = key_of(job->seed, PURPOSE_WEIGHT, (u64)job->projection, (u64)target);
    return inputs;
}

__device__ inline i64 in_degree(const Job *job, const Inputs &inputs)
{
    i64 kind = job->kind;
    if (kind == ALL_TO_ALL)
        return inputs.n;
    if (kind == LISTED)
        return job->listed_first[inputs.local + 1] - inputs.first;
    if (kind == IN_DEGREE)
        return job->counts ? job->counts[inputs.local] : job->degree;
    if (kind == BERNOULLI)
        return job->share >> 32 ? inputs.n
                                  : binomial(inputs.n, job->share, key_of(job->seed, PURPOSE_COUNT, (u64)job->projection, (u64)inputs.target));
    return 1;
}

// The source of the j-th synapse.
__device__ inline i64 drawn_source(const Job *job, const Inputs &inputs, i64 j)
{
    i64 kind = job->kind, source;
    if (kind == ONE_TO_ONE)
        return inputs.target;
    if (kind == LISTED)
        return job->listed[inputs.first + j];
    if (kind == ALL_TO_ALL) {
        i64 itself = inputs.target - inputs.start;
        return inputs.start + j + (job->no_self != 0 && j >= itself);
    }
    if (job->distinct)
        source = inputs.start + distinct(inputs.key, j, inputs.n);
    else
        source = inputs.start + (i64)(((number(inputs.key, j) >> 32) * (u64)inputs.n) >> 32);
    if (job->no_self)
        source += source >= inputs.target;
    return source;
}

// The index of the j-th synapse in given weights or delays.
__device__ inline i64 place_among_given(const Job *job, const Inputs &inputs, i64 j, i64 source)
{
    if (job->kind == LISTED)
        return job->listed_order[inputs.first + j];
    return job->kind == ALL_TO_ALL ? inputs.target * job->n_pre + source : inputs.target;
}

// The delay of the j-th synapse in steps; counts clipped delays.
__device__ inline i64 drawn_delay(const Job *job, const Inputs &inputs, i64 j, i64 source, u64 &clipped)
{
    const i64 kind = job->delay_kind;
    const double *p = job->delay;
    double delay;
    if (kind == VALUES)
        delay = job->delay_values[place_among_given(job, inputs, j, source)];
    else {
        delay = drawn_value(kind, p, (u32)number(inputs.key, j), inputs.key, j, job->normal_table);
        if (kind != CONSTANT && (delay < p[2] || delay > p[3])) {
            clipped++;
            delay = min_of<double>(max_of<double>(delay, p[2]), p[3]);
        }
    }
    return min_of<i64>(max_of<i64>((i64)(delay / job->dt + 0.5), 1), job->longest);
}

__device__ inline double drawn_weight(const Job *job, const Inputs &inputs, i64 j, i64 source)
{
    const i64 kind = job->weight_kind;
    const double *p = job->weight;
    if (kind == CONSTANT)
        return p[0];
    if (kind == VALUES)
        return job->weight_values[place_among_given(job, inputs, j, source)];
    u32 bits = (u32)(number(inputs.weight_key, j) >> 32);
    double weight = drawn_value(kind, p, bits, inputs.weight_key, j, job->normal_table);
    return min_of<double>(max_of<double>(weight, p[2]), p[3]);
}

// Exclusive prefix sum over the threads of a block, and the total. All threads call it; `sums` has an entry for each.
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

// The in-degrees of a fixed total number of synapses: one level of the tree of engine/encoding.py for some projections, one
// warp per node. The count of the left half replaces the count of the node.
extern "C" __global__ void split_nodes(const TreeLevel *job)
{
    SHARED_ROOM(room);
    int lane = threadIdx.x % WARP;
    i64 *sums = (i64 *)room + threadIdx.x - lane;
    i64 warps = (i64)gridDim.x * blockDim.x / WARP, level = job->level;
    for (i64 i = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP; i < job->projections << level; i += warps) {
        const Tree *tree = job->trees + (i >> level);
        i64 low = 0, high = tree->n_post;
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
        i64 *counts = tree->counts;
        if (level == 0 && lane == 0)
            counts[0] = tree->total;
        __syncwarp();
        i64 n = high - low > 1 ? counts[low] : 0;
        if (n == 0)
            continue;
        i64 share = ((middle - low) << 32) / (high - low);
        u64 key = key_of(job->seed, PURPOSE_COUNT, (u64)tree->projection, (u64)(low << 32 | high));
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
