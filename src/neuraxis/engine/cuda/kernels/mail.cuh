// How blocks tell each other who spiked. The mail is the barrier: a line of 16 bytes says which step it is of, how many
// spiked, and who, if there are few. A block writes the line of step t over that of t - LINES; by then it has read
// everybody's line of t - LAG (or t - 1), which they wrote after they had read everybody's lines before.

#define FEW 5              // spikes that fit a line
#define STOP_FLAG 0x8000u  // in the count of a line: stop with the step that collects it
#define MOST_TURNS (1u << 23)  // some seconds: a block that is not there any more

__device__ inline u32 in_line(u64 low, u64 high, u32 k) { return k == 0 ? low >> 48 : high >> (16 * (k - 1)) & 0xFFFF; }

__device__ inline i64 line_of(int step, u32 block) { return (u32)((u32)step & (u32)PLAN[P_LINE_MASK]) * (u32)PLAN[P_BLOCKS] + block; }

// The k-th neuron (its cell in its block) of a line.
__device__ inline u32 who(u64 low, u64 high, u32 count, u32 k, int step, u32 block)
{
    if (count <= FEW)
        return in_line(low, high, k);
    return read_fresh((const u16 *)PLAN[P_MANY] + line_of(step, block) * PLAN[P_CELLS] + k);
}

__device__ inline void note_collected(u32 row, int step)
{
#if COUNTS_POPULATIONS
    int population = ((const u16 *)PLAN[P_POPULATION_OF_ROW])[row];
    i64 slot = (i64)blockIdx.x * PLAN[P_COUNT_SLOTS] + (step & (PLAN[P_COUNT_SLOTS] - 1));
    atomicAdd((int *)PLAN[P_POPULATION_COUNTS] + slot * PLAN[P_POPULATIONS] + population, 1);
#endif
}

// Put the spikes of a line on the list.
__device__ inline void list_spikes(const Block &here, u64 low, u64 high, u32 count, int t, u32 other)
{
    if (count > FEW)
        after_line();
    int turn = t & 1, at = atomicAdd(here.desk->collected + turn, (int)count);
#pragma unroll 1
    for (u32 k = 0; k < count; k++) {
        u32 row = other * (u32)PLAN[P_CELLS] + who(low, high, count, k, t - LAG, other);
        note_collected(row, t - LAG);
        if (at + (int)k < LIST)
            here.list[turn * LIST + at + k] = row | (u32)LAG << ROW_BITS;
    }
}

// Wait for the mail that step t needs, and list whose spikes it brings.
__device__ inline void collect(const Block &here, int t, int after)
{
    Desk *desk = here.desk;
    int step = t - LAG;
    // The last threads wait for the mail: they have no neurons.
#pragma unroll 1
    for (u32 other = THREADS - 1 - threadIdx.x; other < (u32)PLAN[P_BLOCKS]; other += THREADS) {
        u64 low = 0, high = 0;
        if (step >= 1) {
            const u64 *line = (const u64 *)PLAN[P_MAIL] + 2 * line_of(step, other);
            u32 turns = 0;
            read_line(line, low, high);
            while ((u32)low != (u32)step) {
                if (++turns > MOST_TURNS || desk->lost) {
                    desk->lost = 1;
                    *(volatile int *)PLAN[P_LOST] = 1;
                    low = high = 0;
                    break;
                }
                IN_A_TURN();
                read_line(line, low, high);
            }
        }
        here.lines[2 * other] = low;
        here.lines[2 * other + 1] = high;
        u32 count = (u32)(low >> 32) & 0xFFFF;
        if ((count & STOP_FLAG) && step > after)  // (else it was meant for an earlier launch)
            desk->stop = 1;
        count &= STOP_FLAG - 1;
        if (count)
            list_spikes(here, low, high, count, t, other);
    }
}

// The spikes that enter from outside in step t: (step to enter, age << 32 | row), sorted by the first.
SELDOM void collect_outside(int t)
{
    HERE;
    Desk *desk = here.desk;
    int turn = t & 1;
    const i64 *given = (const i64 *)PLAN[P_OUTSIDE];
    for (i64 i = desk->outside + threadIdx.x; i < PLAN[P_OUTSIDE_COUNT]; i += THREADS) {
        if (given[2 * i] != t)
            break;
        u32 age = (u32)(given[2 * i + 1] >> 32), row = (u32)given[2 * i + 1];
        note_collected(row, t - (int)age);
        int at = atomicAdd(desk->collected + turn, 1);
        if (at < LIST)
            here.list[turn * LIST + at] = row | age << ROW_BITS;
    }
}

SELDOM void pass_outside(int t)
{
    HERE;
    Desk *desk = here.desk;
    while (desk->outside < PLAN[P_OUTSIDE_COUNT] && ((const i64 *)PLAN[P_OUTSIDE])[2 * desk->outside] <= t)
        desk->outside++;
}

// More than the list holds: go through the mail once more, line by line, and deliver all of it at once.
SELDOM u64 deliver_flood(int t)
{
    HERE;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / SEGMENT_LANES, groups = WARP / SEGMENT_LANES;
    u32 *rows = here.list + (t & 1) * LIST + warp * WARP;  // a warp's own part of the list, which is of no use now
    u64 events = 0;
    int step = t - LAG;
    for (u32 other = warp; other < (u32)PLAN[P_BLOCKS]; other += WARPS) {
        u64 low = here.lines[2 * other], high = here.lines[2 * other + 1];
        u32 count = (u32)(low >> 32) & (STOP_FLAG - 1);
        for (u32 first = 0; first < count; first += WARP) {
            u32 n = min_of<u32>(WARP, count - first);
            if (lane < n)
                rows[lane] = other * (u32)PLAN[P_CELLS] + who(low, high, count, first + lane, step, other);
            __syncwarp();
            for (u32 k = group; k < n; k += groups) {
                u32 size = deliver_by_few(here.ring, rows[k], (u32)step);
                events += lane % SEGMENT_LANES == 0 ? size : 0;
            }
            __syncwarp();
        }
    }
    const i64 *given = (const i64 *)PLAN[P_OUTSIDE];
    for (i64 i = here.desk->outside + warp * groups + group; i < PLAN[P_OUTSIDE_COUNT] && given[2 * i] == t; i += WARPS * groups) {
        u32 size = deliver_by_few(here.ring, (u32)given[2 * i + 1], (u32)(t - (given[2 * i + 1] >> 32)));
        events += lane % SEGMENT_LANES == 0 ? size : 0;
    }
    return events;
}

// Those of this block that spike in step t. The second of them is where 8 bytes can be read at once.
__device__ inline u16 *own_spikes(const Block &here, int t) { return here.own + (t & 3) * OWN_ROOM((u32)PLAN[P_CELLS]) + 3; }

SELDOM void publish_many(int t, u32 count)
{
    HERE;
    const u16 *own = own_spikes(here, t);
    i64 at = line_of(t, blockIdx.x);
    u16 *many = (u16 *)PLAN[P_MANY] + at * PLAN[P_CELLS];
    for (u32 k = threadIdx.x; k < count; k += THREADS)
        many[k] = own[k];
    __syncthreads();
}

// Tell the others who spikes in step t.
__device__ inline void publish(const Block &here, int t, bool stop)
{
    i64 at = line_of(t, blockIdx.x);
    u32 count = (u32)here.desk->own[t & 3];
    const u16 *own = own_spikes(here, t);
    if (count > FEW)
        publish_many(t, count);
    if (threadIdx.x == 0) {
        // (What a line holds beyond its count is not looked at.)
        u64 low = (u64)(u32)t | (u64)(count | (stop ? STOP_FLAG : 0)) << 32 | (u64)own[0] << 48;
        write_line((u64 *)PLAN[P_MAIL] + 2 * at, low, *(const u64 *)(own + 1), count > FEW);
    }
}
