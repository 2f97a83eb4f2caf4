// What a block of the grid has: a shard of its own, with some of the neurons, the ring of what is still to arrive at them,
// and the synapses onto them.

// What is seldom needed stays out of the loop over steps, which is to fit the processor's cache of instructions.
#define SELDOM static __noinline__ __device__

#define WARPS (THREADS / WARP)
#define ROW_BITS 26
#define LIST 1024
#define OWN_ROOM(cells) (((cells) + 3 + 7) / 8 * 8)

__constant__ i64 PLAN[PLAN_WORDS];

struct Desk {  // what the threads of a block share, beside arrays
    int collected[2];  // spikes that the mail of a step brought, by the step's turn
    int stop;
    int lost;
    int own[4];  // spikes of this block, by the step
    int recorded;
    int noted;
    int forced[2];
    int arriving;  // at plastic synapses
    i64 input;
    i64 input_end;
    i64 outside;
    i64 sampled;
    u64 hash;
    i64 ticks[TICKS_WORDS];
};

// What is fixed for a block while the kernel runs.
struct Block {
    Desk *desk;
    u64 *lines;
    u32 *list;                // [2][LIST]: row of the source | age << ROW_BITS
    u16 *own;                 // see own_spikes
    u32 *forced;              // [2][cells / 32]
    const i64 *populations;   // [parts][Q_WORDS]
    const u32 *tables;        // of Poisson inputs
    float *constants;
    float *levels;
    float *signals;
    u64 *arriving;            // [LIST]: table, delay class and source of what arrives at plastic synapses
    Record *stages;           // [WARPS][AT_ONCE]: records under way from memory
    int *ring;
};

#define ALIGNED(bytes) (((bytes) + 15) / 16 * 16)

__device__ inline Block block_in(char *room)
{
    Block here;
    u32 cells = (u32)PLAN[P_CELLS];
    here.lines = (u64 *)room;
    room += 16 * PLAN[P_BLOCKS];
    here.desk = (Desk *)room;
    room += ALIGNED(sizeof(Desk));
    here.list = (u32 *)room;
    room += 4 * 2 * LIST;
    here.own = (u16 *)room;
    room += 4 * 2 * OWN_ROOM(cells);
    here.forced = (u32 *)room;
    room += ALIGNED((cells + 31) / 32 * 8);
    here.populations = (const i64 *)room;
    room += ALIGNED(8 * Q_WORDS * PLAN[P_PARTS]);
    here.tables = (const u32 *)room;
    room += ALIGNED(4 * PLAN[P_TABLE_WORDS]);
    here.constants = (float *)room;
    room += ALIGNED(4 * PLAN[P_CONSTANT_WORDS]);
    here.levels = (float *)room;
    room += ALIGNED(4 * PLAN[P_MODULATORS]);
    here.signals = (float *)room;
    room += ALIGNED(4 * (PLAN[P_MODULATORS] + PLAN[P_RHYTHM_COUNT]));
    here.arriving = (u64 *)room;
    room += PLASTIC ? 8 * LIST : 0;
    here.stages = (Record *)room;
    room += AT_ONCE * WARPS * sizeof(Record);
#if RING_IN_SHARED
    here.ring = (int *)room;
#else
    here.ring = (int *)PLAN[P_RING] + (i64)blockIdx.x * PLAN[P_SLOTS] * PLAN[P_ACCUMULATORS];
#endif
    return here;
}

// In a function that is called and not put in place: the address of a Block would keep it out of registers for everyone.
#define HERE           \
    SHARED_ROOM(room); \
    const Block here = block_in(room)

template <typename T> __device__ inline void copy(T *to, const T *from, i64 n)
{
#pragma unroll 1
    for (i64 i = threadIdx.x; i < n; i += THREADS)
        to[i] = from[i];
}
