// The state of a block of the grid. A block owns some of the neurons, the ring buffer of weights that will arrive at them,
// and the synapses onto them.

// Rarely executed functions are not inlined into the loop over steps, so that it fits the instruction cache.
#define COLD static __noinline__ __device__

#define WARPS (THREADS / WARP)
#define ROW_BITS 26
#define ARRIVING 1024
#define OWN_ROOM(cells) (((cells) + 3 + 7) / 8 * 8)

__constant__ Layout layout;

struct Control {  // scalars that the threads of a block share
    int collected[2];  // spikes in the messages of a step, by its parity
    int stop;
    int lost;
    int own[4];  // spikes of this block, by step modulo 4
    int recorded;
    int recent;
    int forced[2];
    int arriving;  // at plastic synapses
    int from_ring;  // the ring has weights that arrive in this step (QUEUED)
    i64 input;
    i64 input_end;
    i64 outside;
    i64 sampled;
    u64 hash;
    Ticks ticks;
};

// What a thread needs to know about a population to update its neurons (neurons.cuh).
struct alignas(16) Brief {
    u32 traits;
    int table, weight;
    int unused;
};

// Addresses in shared memory; constant while the kernel runs.
struct Block {
    Control *control;
    u64 *messages;
    u32 *list;                // [2][LIST]: row of the source | age << ROW_BITS
    u16 *own;                 // see own_spikes
    u32 *forced;              // [2][cells / 32]
    const Population *populations;  // [parts]
    Brief *briefs;            // [parts]
    int *places;              // [blocks]: of the spikes of each message in the list
    const u32 *tables;        // of Poisson inputs
    float *constants;
    float *levels;
    float *signals;
    u64 *arriving;            // [ARRIVING]: table, delay class and source of spikes that arrive at plastic synapses
    Record *stages;           // [WARPS][PREFETCHED]: records being prefetched
    int *ring;
    int *sums;                // [accumulators]: of the weights that arrive in this step (QUEUED)
    u32 *queued;              // [slots]: entries of each queue, also those that did not fit
    u64 *queues;              // [slots][queue room]
};

#define ALIGNED(bytes) (((bytes) + 15) / 16 * 16)

__device__ inline Block block_in(char *room)
{
    Block here;
    u32 cells = (u32)layout.cells;
    here.messages = (u64 *)room;
    room += 16 * layout.blocks;
    here.control = (Control *)room;
    room += ALIGNED(sizeof(Control));
    here.list = (u32 *)room;
    room += 4 * 2 * LIST;
    here.own = (u16 *)room;
    room += 4 * 2 * OWN_ROOM(cells);
    here.forced = (u32 *)room;
    room += ALIGNED((cells + 31) / 32 * 8);
    here.populations = (const Population *)room;
    room += ALIGNED((i64)sizeof(Population) * layout.parts);
    here.briefs = (Brief *)room;
    room += sizeof(Brief) * layout.parts;
    here.places = (int *)room;
    room += ALIGNED(4 * layout.blocks);
    here.tables = (const u32 *)room;
    room += ALIGNED(4 * layout.poisson_words);
    here.constants = (float *)room;
    room += ALIGNED(4 * layout.constant_words);
    here.levels = (float *)room;
    room += ALIGNED(4 * layout.modulators);
    here.signals = (float *)room;
    room += ALIGNED(4 * (layout.modulators + layout.rhythm_count));
    here.arriving = (u64 *)room;
    room += PLASTIC ? 8 * ARRIVING : 0;
    here.stages = (Record *)room;
    room += PREFETCHED * WARPS * sizeof(Record);
#if QUEUED
    here.sums = (int *)room;
    here.queued = (u32 *)(here.sums + layout.accumulators);
    here.queues = layout.queues + (i64)blockIdx.x * layout.slots * layout.queue_room;
#endif
#if RING_IN_SHARED
    here.ring = (int *)room;
#else
    here.ring = layout.ring + (i64)blockIdx.x * layout.slots * layout.accumulators;
#endif
    return here;
}

// Recomputes the addresses in functions that are not inlined: passing the address of a Block would keep it out of registers.
#define LOCATE_BLOCK           \
    SHARED_ROOM(room); \
    const Block here = block_in(room)

template <typename T> __device__ inline void copy(T *to, const T *from, i64 n)
{
#pragma unroll 1
    for (i64 i = threadIdx.x; i < n; i += THREADS)
        to[i] = from[i];
}
