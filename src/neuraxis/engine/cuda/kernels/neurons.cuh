// Neurons: Poisson input, update, and recording of spikes.

// What a thread needs to know about a neuron's population in every step, packed into one word of its Brief.
#define TRAIT_CONSTANTS(traits) ((traits) & 0xFFFFu)  // in fours
#define TRAIT_MODEL(traits) ((traits) >> 16 & 0x7Fu)
#define TRAIT_RECEPTORS(traits) ((traits) >> 23 & 0x3Fu)
#define TRAIT_SILENT (1u << 29)
#define TRAIT_PULSES (1u << 30)
#define TRAIT_HERE (1u << 31)

#define NO_POISSON -1       // no Poisson input
#define SLOW_POISSON -2     // several inputs, one that starts or stops, or rates that differ between neurons

__device__ inline const Population *population_of(const Block &here, u32 cell)
{
    return here.populations + layout.population_of_cell[(i64)blockIdx.x * layout.cells + cell];
}

__device__ inline u32 traits_of(const Population *population)
{
    return (u32)(population->constants / 4) | (u32)population->model << 16 | (u32)population->receptors << 23 |
           (population->silent ? TRAIT_SILENT : 0) | (population->pulse_first < population->pulse_end ? TRAIT_PULSES : 0) |
           TRAIT_HERE;
}

// The position of a population's Poisson table in shared memory, if it has exactly one input that is always on.
__device__ inline int poisson_table_of(const Population *population, int after, int until)
{
    i64 first = population->poisson_first;
    if (first == population->poisson_end)
        return NO_POISSON;
    const PoissonInput *given = layout.poisson_inputs + first;
    bool always = given->start < after + 1 && until <= given->stop;
    return population->poisson_end - first == 1 && always ? (int)given->table_place : SLOW_POISSON;
}

// Fill the briefs for a launch.
__device__ inline void brief(const Block &here, int after, int until)
{
    for (u32 i = threadIdx.x; i < (u32)layout.parts; i += THREADS) {
        const Population *population = here.populations + i;
        int table = poisson_table_of(population, after, until);
        int weight = table >= 0 ? (int)layout.poisson_inputs[population->poisson_first].weight : 0;
        here.briefs[i] = Brief{traits_of(population), table, weight, 0};
    }
}

// The place of a Poisson table in shared memory (20 bits), whether draws are unsigned, and the receptor (from bit 24 on).
#define TABLE_PLACE(table) ((table) & 0xFFFFF)
#define TABLE_IS_UNSIGNED(table) ((u32)(table) >> 23 & 1)
#define TABLE_RECEPTOR(table) ((table) >> 24)
#define GUIDE_WORDS 129

// The number of thresholds that a draw exceeds. The table starts with the numbers that 2^24 times i exceeds, for i = 0 to 256,
// in 16 bits each.
__device__ inline int count_exceeded(const Block &here, int table, u32 bits)
{
    const u32 *words = here.tables + TABLE_PLACE(table), *thresholds = words + GUIDE_WORDS;
    u32 draw = TABLE_IS_UNSIGNED(table) ? bits : bits ^ 0x80000000u;
    const u16 *guide = (const u16 *)words + (draw >> 24);
    u32 low = guide[0], high = guide[1];
#pragma unroll 1
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (draw > thresholds[middle])
            low = middle + 1;
        else
            high = middle;
    }
    return (int)low;
}

// A Poisson variate for a rate that differs between neurons, or has no table: inverts the cumulative distribution.
COLD int poisson_by_inversion(const PoissonInput *given, i64 global_cell, u32 bits)
{
    const double *pair = (const double *)given->table + 2 * (i64)layout.place_of_cell[global_cell];
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

// Sum the Poisson inputs of each receptor of a neuron in step t; returns its random stream afterwards.
COLD Stream poisson(u32 cell, int t, Stream stream, int *added)
{
    LOCATE_BLOCK;
    const Population *population = population_of(here, cell);
    for (int r = 0; r < RECEPTORS; r++)
        added[r] = 0;
    for (i64 i = population->poisson_first; i < population->poisson_end; i++) {
        const PoissonInput *given = layout.poisson_inputs + i;
        if (!(given->start < t && t <= given->stop))
            continue;
        u32 bits = (u32)draw(stream.s0, stream.s1);
        int count = 0;
        if ((int)given->table_place >= 0)
            count = count_exceeded(here, (int)given->table_place, bits);
        else if (given->thresholds) {
            const int *thresholds = (const int *)given->table;
            while (count < (int)given->thresholds && (int)bits > thresholds[count])
                count++;
        } else
            count = poisson_by_inversion(given, (i64)blockIdx.x * layout.cells + cell, bits);
        added[given->receptor] += (int)((u32)count * (u32)given->weight);
    }
    return stream;
}

// The current into a neuron in step t. It is constant during a launch: the host ends launches where a current starts or stops.
COLD float sum_of_pulses(u32 cell, int t)
{
    LOCATE_BLOCK;
    const Population *population = population_of(here, cell);
    float same = 0.0f, own = 0.0f;
    for (i64 i = population->pulse_first; i < population->pulse_end; i++) {
        const Current *pulse = layout.pulses + i;
        if (!(pulse->start < t && t <= pulse->stop))
            continue;
        if (pulse->values == 0)
            same += bits_to_f((u32)pulse->bits);
        else
            own += pulse->values[layout.place_of_cell[(i64)blockIdx.x * layout.cells + cell]];
    }
    return population->own_current ? same + own : same;
}

// The bits of a float as it is stored: decaying states must not end in denormal numbers (see engine/codegen.py).
__device__ inline u32 stored_bits(float value) { return fabsf(value) < bits_to_f(SMALLEST_STORED) ? 0u : f_to_bits(value); }

__device__ inline bool is_not_finite(u32 bits) { return (bits & 0x7FFFFFFFu) >= 0x7F800000u; }
__device__ inline u32 kind_of_not_finite(u32 bits) { return bits == 0x7F800000u ? 1 : bits == 0xFF800000u ? 2 : 0; }

struct alignas(16) Four {
    float x[4];
};

#include "models.cuh"

__device__ inline bool is_silent(u32 traits) { return INTERVENTIONS && (traits & TRAIT_SILENT); }

#if RATES
#include "rates.cuh"
#endif

// True if a neuron must spike in step t.
__device__ inline bool is_forced(const Block &here, int t, u32 traits, u32 cell)
{
    return INTERVENTIONS && !(traits & TRAIT_SILENT) && here.control->forced[t & 1] && (here.forced[(t & 1) * (((u32)layout.cells + 31) / 32) + cell / 32] >> (cell % 32) & 1);
}

__device__ inline void list_own(const Block &here, int t, u32 cell)
{
    own_spikes(here, t)[atomicAdd(here.control->own + (t & 3), 1)] = (u16)cell;
}

// Report a state that is not finite; the first by step, neuron and state is kept. The packed word (31 bits step, 24 bits
// position of the neuron, 7 bits state, 2 bits kind) is complemented, so that atomicMax keeps the first and 0 means none.
__device__ inline void report_not_finite(int t, u32 cell, u32 model, const u32 *state)
{
    u32 found = not_finite_model(model, state);
    if (found) {
        u64 place = (u64)cell * (u64)layout.blocks + blockIdx.x;
        atomicMax(&layout.totals->unstable, ~((u64)t << 33 | place << 9 | (u64)(found - 1)));
    }
}

// True if states are checked in step t; see is_check_step in engine/cpu/advance.py.
__device__ inline bool is_check_step(int t)
{
    return ((u32)t & ((1u << CHECK_BITS) - 1)) == ((((u32)t >> CHECK_BITS) + 1) * CHECK_FACTOR) >> (32 - CHECK_BITS);
}

// Advance a neuron by step t; `added` is its Poisson input. Returns true if it spikes.
__device__ inline bool update(const Block &here, int t, u32 cell, u32 traits, float current, u32 *state, const int *added)
{
    u32 cells = (u32)layout.cells;
    int *slot = arriving_in(here, t) + cell;
#if QUEUED
    int *beyond = here.ring + ((u32)t & ((u32)layout.slots - 1)) * (u32)layout.accumulators + cell;
    const bool from_ring = here.control->from_ring;
#endif
    int arrived[RECEPTORS];
#pragma unroll
    for (int r = 0; r < RECEPTORS; r++) {
        arrived[r] = 0;
        if (r < (int)TRAIT_RECEPTORS(traits)) {
            arrived[r] = slot[r * cells] + added[r];
            slot[r * cells] = 0;
#if QUEUED
            if (from_ring) {
                arrived[r] += beyond[r * cells];
                beyond[r * cells] = 0;
            }
#endif
        }
    }
    if (is_silent(traits))
        return false;
    const Four *constants = (const Four *)here.constants + TRAIT_CONSTANTS(traits);
    float driven[RATE_INPUTS] = {};
#if RATES
    sum_rate_inputs(t, cell, driven);
#endif
    bool spikes = advance_model(TRAIT_MODEL(traits), state, arrived, constants, current, driven, t);
#if CHECKED
    if (is_check_step(t) || t == (int)layout.check_step)
        report_not_finite(t, cell, TRAIT_MODEL(traits), state);
#endif
    return spikes;
}

#if LOOKAHEAD
// True if a neuron spikes in step t, the next one, whose input has not arrived yet.
__device__ inline bool spikes_next(const Block &here, int t, u32 traits, float current, const u32 *state)
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
    return advance_model(TRAIT_MODEL(traits), then, nothing, constants, current, nullptr, t);
}
#endif

// Record the spikes of this block in step t: for probes, for the host's history, in the counts and the hash, and for plastic
// synapses.
__device__ inline void record_spikes(const Block &here, int t)
{
    Control *control = here.control;
    i64 parts = layout.parts;
#pragma unroll 1
    for (int i = threadIdx.x % WARP; i < control->own[t & 3]; i += WARP) {
        u32 cell = own_spikes(here, t)[i];
        i64 global_cell = (i64)blockIdx.x * layout.cells + cell, q = (i64)cell * layout.blocks + blockIdx.x;
        int part = layout.population_of_cell[global_cell];
        const Population *population = here.populations + part;
        u64 entry = (u64)t << 32 | (u32)(q - population->first_place + population->first_id);
        atomicAdd(layout.spike_counts + global_cell, 1);
        atomicAdd(layout.population_spikes + (i64)blockIdx.x * parts + part, (u64)1);
        if (population->record == 1 || (population->record == 2 && layout.recorded_cells[global_cell]))
            layout.spike_record[(i64)blockIdx.x * layout.record_room + atomicAdd(&control->recorded, 1)] = entry;
        u32 at = (u32)atomicAdd(&control->recent, 1) % (u32)layout.recent_room;
        layout.recent_spikes[(i64)blockIdx.x * layout.recent_room + at] = entry;
        atomicAdd(&control->hash, mix(entry));
#if PLASTIC
        for (i64 k = population->plastic_first; k < population->plastic_end; k++)
            record_post_spike(k, q - population->first_place, t);
#endif
    }
}
