// Neurons: their Poisson input, their step, and what is noted of a spike.

// What a thread has to know of a neuron's population at every step, in one word.
#define TRAIT_CONSTANTS(traits) ((traits) & 0xFFFFu)  // in fours
#define TRAIT_MODEL(traits) ((traits) >> 16 & 0x7Fu)
#define TRAIT_RECEPTORS(traits) ((traits) >> 23 & 0x3Fu)
#define TRAIT_SILENT (1u << 29)
#define TRAIT_PULSES (1u << 30)
#define TRAIT_HERE (1u << 31)

#define NO_POISSON -1       // for this population
#define SLOW_POISSON -2     // several inputs, or one that is not always on, or of rates that differ

__device__ inline const i64 *population_of(const Block &here, u32 cell)
{
    return here.populations + ((const short *)PLAN[P_POPULATION_OF_CELL])[(i64)blockIdx.x * PLAN[P_CELLS] + cell] * Q_WORDS;
}

__device__ inline u32 traits_of(const i64 *population)
{
    return (u32)(population[Q_CONSTANTS] / 4) | (u32)population[Q_MODEL] << 16 | (u32)population[Q_RECEPTORS] << 23 |
           (population[Q_SILENT] ? TRAIT_SILENT : 0) | (population[Q_PULSE_FIRST] < population[Q_PULSE_END] ? TRAIT_PULSES : 0) |
           TRAIT_HERE;
}

// Where among the shared tables a population's only Poisson input has its own.
__device__ inline int poisson_table_of(const i64 *population, int after, int until)
{
    i64 first = population[Q_POISSON_FIRST];
    if (first == population[Q_POISSON_END])
        return NO_POISSON;
    const i64 *given = (const i64 *)PLAN[P_POISSONS] + first * G_WORDS;
    bool always = given[G_START] < after + 1 && until <= given[G_STOP];
    return population[Q_POISSON_END] - first == 1 && always ? (int)given[G_TABLE_PLACE] : SLOW_POISSON;
}

// How many thresholds a draw exceeds: 256 bytes say how many at least, by its first 8 bits.
__device__ inline int count_exceeded(const u32 *table, u32 bits)
{
    u32 draw = bits ^ 0x80000000u;
    int count = ((const u8 *)table)[draw >> 24];
#pragma unroll 1
    while (draw > table[64 + count])
        count++;
    return count;
}

// A Poisson number for a rate that differs between neurons, or is too high for thresholds.
SELDOM int count_up(const i64 *given, i64 everywhere, u32 bits)
{
    const double *pair = (const double *)given[G_TABLE] + 2 * (i64)((const int *)PLAN[P_PLACE_OF_CELL])[everywhere];
    double drawn = (double)bits * 0x1p-32, probability = pair[0], reached = probability;
    int count = 0;
    while (drawn >= reached && probability > 0.0) {
        count++;
        probability = probability * pair[1] / count;
        reached += probability;
    }
    return count;
}

struct Stream {
    u32 s0, s1;
};

// What Poisson inputs add to each receptor of a neuron in step t; its random stream afterwards.
SELDOM Stream poisson(u32 cell, int t, Stream stream, int *added)
{
    HERE;
    const i64 *population = population_of(here, cell);
    for (int r = 0; r < RECEPTORS; r++)
        added[r] = 0;
    for (i64 i = population[Q_POISSON_FIRST]; i < population[Q_POISSON_END]; i++) {
        const i64 *given = (const i64 *)PLAN[P_POISSONS] + i * G_WORDS;
        if (!(given[G_START] < t && t <= given[G_STOP]))
            continue;
        u32 bits = (u32)draw(stream.s0, stream.s1);
        int count = 0;
        if (given[G_THRESHOLDS]) {
            const int *thresholds = (const int *)given[G_TABLE];
            while (count < (int)given[G_THRESHOLDS] && (int)bits > thresholds[count])
                count++;
        } else
            count = count_up(given, (i64)blockIdx.x * PLAN[P_CELLS] + cell, bits);
        added[given[G_RECEPTOR]] += (int)((u32)count * (u32)given[G_WEIGHT]);
    }
    return stream;
}

// The current that flows into a neuron in step t. It is the same in all steps of a launch: no pulse begins or ends in one.
SELDOM float sum_of_pulses(u32 cell, int t)
{
    HERE;
    const i64 *population = population_of(here, cell), *pulses = (const i64 *)PLAN[P_PULSES];
    float same = 0.0f, own = 0.0f;
    for (i64 i = population[Q_PULSE_FIRST]; i < population[Q_PULSE_END]; i++) {
        const i64 *pulse = pulses + i * U_WORDS;
        if (!(pulse[U_START] < t && t <= pulse[U_STOP]))
            continue;
        if (pulse[U_VALUES] == 0)
            same += bits_to_f((u32)pulse[U_BITS]);
        else
            own += ((const float *)pulse[U_VALUES])[((const int *)PLAN[P_PLACE_OF_CELL])[(i64)blockIdx.x * PLAN[P_CELLS] + cell]];
    }
    return population[Q_OWN_CURRENT] ? same + own : same;
}

// A float that is kept: what only decays would end in denormal numbers (see engine/generated.py).
__device__ inline u32 kept(float value) { return fabsf(value) < bits_to_f(SMALLEST_KEPT) ? 0u : f_to_bits(value); }

struct alignas(16) Four {
    float x[4];
};

#include "models.cuh"

__device__ inline bool is_silent(u32 traits) { return ACTING && (traits & TRAIT_SILENT); }

// Whether a neuron is told to spike in step t.
__device__ inline bool is_forced(const Block &here, int t, u32 traits, u32 cell)
{
    return ACTING && !(traits & TRAIT_SILENT) && here.desk->forced[t & 1] && (here.forced[(t & 1) * (((u32)PLAN[P_CELLS] + 31) / 32) + cell / 32] >> (cell % 32) & 1);
}

__device__ inline void list_own(const Block &here, int t, u32 cell)
{
    own_spikes(here, t)[atomicAdd(here.desk->own + (t & 3), 1)] = (u16)cell;
}

// Advance a neuron by step t; `added` is what Poisson inputs give it. Whether it spikes.
__device__ inline bool update(const Block &here, int t, u32 cell, u32 traits, float current, u32 *state, const int *added)
{
    u32 cells = (u32)PLAN[P_CELLS];
    int *slot = here.ring + ((u32)t & ((u32)PLAN[P_SLOTS] - 1)) * (u32)PLAN[P_ACCUMULATORS] + cell;
    int arrived[RECEPTORS];
#pragma unroll
    for (int r = 0; r < RECEPTORS; r++) {
        arrived[r] = 0;
        if (r < (int)TRAIT_RECEPTORS(traits)) {
            arrived[r] = slot[r * cells] + added[r];
            slot[r * cells] = 0;
        }
    }
    if (is_silent(traits))
        return false;
    const Four *constants = (const Four *)here.constants + TRAIT_CONSTANTS(traits);
    return advance_model(TRAIT_MODEL(traits), state, arrived, constants, current);
}

#if FORESIGHT
// Whether a neuron spikes in the step to come, of which it has not heard yet.
__device__ inline bool foresee(const Block &here, u32 traits, float current, const u32 *state)
{
    if (is_silent(traits))
        return false;
    u32 then[STATE_ROWS];
    int nothing[RECEPTORS];
#pragma unroll
    for (int r = 0; r < STATE_ROWS; r++)
        then[r] = state[r];
#pragma unroll
    for (int r = 0; r < RECEPTORS; r++)
        nothing[r] = 0;
    const Four *constants = (const Four *)here.constants + TRAIT_CONSTANTS(traits);
    return advance_model(TRAIT_MODEL(traits), then, nothing, constants, current);
}
#endif

// Tell whoever wants to know, now or later, of this block's spikes in step t.
__device__ inline void note_spikes(const Block &here, int t)
{
    Desk *desk = here.desk;
    i64 parts = PLAN[P_PARTS];
#pragma unroll 1
    for (int i = threadIdx.x % WARP; i < desk->own[t & 3]; i += WARP) {
        u32 cell = own_spikes(here, t)[i];
        i64 everywhere = (i64)blockIdx.x * PLAN[P_CELLS] + cell, q = (i64)cell * PLAN[P_BLOCKS] + blockIdx.x;
        int part = 0;
        while (part + 1 < parts && q >= here.populations[(part + 1) * Q_WORDS + Q_FIRST_PLACE])
            part++;
        const i64 *population = here.populations + part * Q_WORDS;
        u64 entry = (u64)t << 32 | (u32)(q - population[Q_FIRST_PLACE] + population[Q_FIRST_ID]);
        atomicAdd((int *)PLAN[P_SPIKE_COUNTS] + everywhere, 1);
        atomicAdd((u64 *)PLAN[P_POPULATION_SPIKES] + (i64)blockIdx.x * parts + part, (u64)1);
        if (population[Q_RECORD] == 1 || (population[Q_RECORD] == 2 && ((const u8 *)PLAN[P_RECORDED_CELLS])[everywhere]))
            ((u64 *)PLAN[P_SPIKE_RECORD])[(i64)blockIdx.x * PLAN[P_RECORD_ROOM] + atomicAdd(&desk->recorded, 1)] = entry;
        u32 note = (u32)atomicAdd(&desk->noted, 1) % (u32)PLAN[P_NOTE_ROOM];
        ((u64 *)PLAN[P_NOTES])[(i64)blockIdx.x * PLAN[P_NOTE_ROOM] + note] = entry;
        atomicAdd(&desk->hash, mix(entry));
#if PLASTIC
        for (i64 k = population[Q_PLASTIC_FIRST]; k < population[Q_PLASTIC_END]; k++)
            note_post_spike(k, q - population[Q_FIRST_PLACE], t);
#endif
    }
}
