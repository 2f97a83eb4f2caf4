// Exchange of spikes between blocks. Messages also serve as the barrier: each block publishes one message of 16 bytes per
// step, with the step, the number of spikes, and the ids if there are few. The message of step t overwrites that of step
// t - (message slots). This is safe: by then the block has read all messages of step t - LAG (or t - 1), and their writers
// had read all earlier messages before.

#define SHORT_MESSAGE 5        // spikes that fit a message
#define STOP_FLAG 0x8000u      // in the count of a message: stop after the step that collects it
#define MOST_SPINS (1u << 23)  // some seconds; then the other block is considered lost

__device__ inline u32 inline_id(u64 low, u64 high, u32 k) { return k == 0 ? low >> 48 : high >> (16 * (k - 1)) & 0xFFFF; }

__device__ inline i64 message_of(int step, u32 block) { return (u32)((u32)step & (u32)layout.message_mask) * (u32)layout.blocks + block; }

// The k-th neuron of a message, as its cell in its block.
__device__ inline u32 id_at(u64 low, u64 high, u32 count, u32 k, int step, u32 block)
{
    if (count <= SHORT_MESSAGE)
        return inline_id(low, high, k);
    return read_fresh(layout.long_messages + message_of(step, block) * layout.cells + k);
}

// Count a spike of the source with this row among those of its population in that step.
__device__ inline void count_collected(u32 row, int step)
{
#if COUNTS_POPULATIONS
    int population = layout.population_of_row[row];
    i64 slot = (i64)blockIdx.x * layout.count_slots + (step & (layout.count_slots - 1));
    atomicAdd(layout.population_counts + slot * layout.populations + population, 1);
#endif
}

#define LISTING_LANES (WARP < 8 ? WARP : 8)  // that list the spikes of a message
#define IDS_AT_ONCE 4

// Add the spikes of a message to the list.
__device__ inline void list_spikes(const Block &here, u64 low, u64 high, u32 count, int t, u32 other)
{
    if (count > SHORT_MESSAGE)
        after_message();
    int turn = t & 1, at = atomicAdd(here.control->collected + turn, (int)count);
#if COMPACT
    here.places[other] = at;  // there may be many: several lanes list them later
    return;
#endif
#pragma unroll 1
    for (u32 k = 0; k < count; k++) {
        u32 row = other * (u32)layout.cells + id_at(low, high, count, k, t - LAG, other);
        count_collected(row, t - LAG);
        if (at + (int)k < LIST)
            here.list[turn * LIST + at + k] = row | (u32)LAG << ROW_BITS;
    }
}

#if COMPACT
// List the spikes of all messages of step t, several lanes for each.
__device__ inline void list_collected(const Block &here, int t)
{
    const u32 lane = threadIdx.x % LISTING_LANES;
    u32 *list = here.list + (t & 1) * LIST;
    for (u32 other = threadIdx.x / LISTING_LANES; other < (u32)layout.blocks; other += THREADS / LISTING_LANES) {
        u64 low = here.messages[2 * other], high = here.messages[2 * other + 1];
        u32 count = (u32)(low >> 32) & (STOP_FLAG - 1), first = other * (u32)layout.cells;
        for (u32 k = lane; k < count; k += IDS_AT_ONCE * LISTING_LANES) {
            u32 ids[IDS_AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < IDS_AT_ONCE; i++)
                ids[i] = k + i * LISTING_LANES < count ? id_at(low, high, count, k + i * LISTING_LANES, t - LAG, other) : 0;
#pragma unroll
            for (u32 i = 0; i < IDS_AT_ONCE; i++) {
                u32 at = here.places[other] + k + i * LISTING_LANES;
                if (k + i * LISTING_LANES >= count)
                    break;
                count_collected(first + ids[i], t - LAG);
                if (at < LIST)
                    list[at] = (first + ids[i]) | (u32)LAG << ROW_BITS;
            }
        }
    }
}
#endif

// Wait for the messages that step t needs, and list their spikes.
__device__ inline void collect(const Block &here, int t, int after)
{
    Control *control = here.control;
    int step = t - LAG;
    // The last threads wait for messages, because they have no neurons.
#pragma unroll 1
    for (u32 other = THREADS - 1 - threadIdx.x; other < (u32)layout.blocks; other += THREADS) {
        u64 low = 0, high = 0;
        if (step >= 1) {
            const u64 *message = layout.messages + 2 * message_of(step, other);
            u32 turns = 0;
            read_message(message, low, high);
            while ((u32)low != (u32)step) {
                if (++turns > MOST_SPINS || control->lost) {
                    control->lost = 1;
                    *(volatile int *)layout.lost = 1;
                    low = high = 0;
                    break;
                }
                SPIN_WAIT();
                read_message(message, low, high);
            }
        }
        here.messages[2 * other] = low;
        here.messages[2 * other + 1] = high;
        u32 count = (u32)(low >> 32) & 0xFFFF;
        if ((count & STOP_FLAG) && step > after)  // (an earlier one belongs to the previous launch)
            control->stop = 1;
        count &= STOP_FLAG - 1;
        if (count)
            list_spikes(here, low, high, count, t, other);
        if (RATES)
            after_message();  // the outputs of that step follow
    }
}

// List the spikes of other shards that enter in step t. They are sorted by that step.
COLD void collect_outside(int t)
{
    LOCATE_BLOCK;
    Control *control = here.control;
    int turn = t & 1;
    for (i64 i = control->outside + threadIdx.x; i < layout.outside_count; i += THREADS) {
        const OutsideSpike spike = layout.outside[i];
        if (spike.step != t)
            break;
        count_collected(spike.row, t - (int)spike.age);
        int at = atomicAdd(control->collected + turn, 1);
        if (at < LIST)
            here.list[turn * LIST + at] = spike.row | spike.age << ROW_BITS;
    }
}

// Advance past the spikes of other shards that enter up to step t.
COLD void advance_outside(int t)
{
    LOCATE_BLOCK;
    Control *control = here.control;
    while (control->outside < layout.outside_count && layout.outside[control->outside].step <= t)
        control->outside++;
}

// The list has overflowed: go through the messages again and deliver all spikes directly.
COLD u64 deliver_overflow(int t)
{
    LOCATE_BLOCK;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / SEGMENT_LANES, groups = WARP / SEGMENT_LANES;
    u32 *rows = here.list + (t & 1) * LIST + warp * WARP;  // a warp's part of the list, which is not needed now
    u64 events = 0;
    int step = t - LAG;
    for (u32 other = warp; other < (u32)layout.blocks; other += WARPS) {
        u64 low = here.messages[2 * other], high = here.messages[2 * other + 1];
        u32 count = (u32)(low >> 32) & (STOP_FLAG - 1);
        for (u32 first = 0; first < count; first += WARP) {
            u32 n = min_of<u32>(WARP, count - first);
            if (lane < n)
                rows[lane] = other * (u32)layout.cells + id_at(low, high, count, first + lane, step, other);
            __syncwarp();
            for (u32 k = group; k < n; k += groups) {
                u32 size = deliver_by_few(here, rows[k], (u32)step);
                events += lane % SEGMENT_LANES == 0 ? size : 0;
            }
            __syncwarp();
        }
    }
    for (i64 i = here.control->outside + warp * groups + group; i < layout.outside_count; i += WARPS * groups) {
        const OutsideSpike spike = layout.outside[i];
        if (spike.step != t)
            break;
        u32 size = deliver_by_few(here, spike.row, (u32)t - spike.age);
        events += lane % SEGMENT_LANES == 0 ? size : 0;
    }
    return events;
}

// The cells of this block that spike in step t. The second one is aligned to 8 bytes.
__device__ inline u16 *own_spikes(const Block &here, int t) { return here.own + (t & 3) * OWN_ROOM((u32)layout.cells) + 3; }

COLD void publish_long(int t, u32 count)
{
    LOCATE_BLOCK;
    const u16 *own = own_spikes(here, t);
    i64 at = message_of(t, blockIdx.x);
    u16 *many = layout.long_messages + at * layout.cells;
    for (u32 k = threadIdx.x; k < count; k += THREADS)
        many[k] = own[k];
    __syncthreads();
}

// Publish the spikes of this block in step t.
__device__ inline void publish(const Block &here, int t, bool stop)
{
    i64 at = message_of(t, blockIdx.x);
    u32 count = (u32)here.control->own[t & 3];
    const u16 *own = own_spikes(here, t);
    if (count > SHORT_MESSAGE)
        publish_long(t, count);
    if (threadIdx.x == 0) {
        // Readers ignore ids beyond the count.
        u64 low = (u64)(u32)t | (u64)(count | (stop ? STOP_FLAG : 0)) << 32 | (u64)own[0] << 48;
        write_message(layout.messages + 2 * at, low, *(const u64 *)(own + 1), RATES || count > SHORT_MESSAGE);
    }
}
