// The steps of a network. Blocks of the grid exchange spikes by mail and by nothing else. A step t of a block:
//   collect   the mail of step t - LAG from every block, and the spikes that came from outside
//   hurry     deliver those synapses that are felt in step t itself (URGENT: LAG is the shortest delay)
//   update    Poisson input, neurons; spikes go into the block's own mail of step t
//   deliver   the other synapses of what was collected, while the mail of the others is on its way
//
// Where every model knows its spikes one step ahead (FORESIGHT: what arrives in a step does not decide about a spike in it),
// the mail of step t is written at the end of step t - 1 and LAG is 0: nothing is in a hurry then, for what is felt
// in step t + 1 is delivered in step t.

#include "desk.cuh"
#include "delivery.cuh"
#include "mail.cuh"
#if PLASTIC
#include "plastic.cuh"
#endif
#include "neurons.cuh"
#include "signals.cuh"

__device__ inline void load(u32 *state, i64 everywhere)
{
#pragma unroll
    for (int r = 0; r < STATE_ROWS; r++)
        state[r] = ((const u32 *)PLAN[P_STATES])[r * PLAN[P_BLOCKS] * PLAN[P_CELLS] + everywhere];
}

__device__ inline void store(const u32 *state, i64 everywhere)
{
#pragma unroll
    for (int r = 0; r < STATE_ROWS; r++)
        ((u32 *)PLAN[P_STATES])[r * PLAN[P_BLOCKS] * PLAN[P_CELLS] + everywhere] = state[r];
}

#if STATES_IN_REGISTERS
// A neuron that stays with its thread: its states, and the Poisson input of its next step with the stream after it.
struct Neuron {
    u32 traits;
    int table, weight;
    float current;
    u32 state[STATE_ROWS];
    Stream next;
    int added[RECEPTORS];
};

#define EVERY_NEURON _Pragma("unroll") for (int e = 0; e < EACH; e++) if (neurons[e].traits)
#define CELL (threadIdx.x + e * THREADS)

// Draw the Poisson input of step t, which does not depend on the mail.
__device__ inline void draw_ahead(const Block &here, int t, u32 cell, Neuron &neuron)
{
    neuron.next = Stream{neuron.state[0], neuron.state[1]};
#pragma unroll
    for (int r = 0; r < RECEPTORS; r++)
        neuron.added[r] = 0;
    if (neuron.table == NO_POISSON || is_silent(neuron.traits))
        return;
    if (neuron.table == SLOW_POISSON) {
        int added[RECEPTORS];
        neuron.next = poisson(cell, t, neuron.next, added);
#pragma unroll
        for (int r = 0; r < RECEPTORS; r++)
            neuron.added[r] = added[r];
        return;
    }
    u32 bits = (u32)draw(neuron.next.s0, neuron.next.s1);
    int amount = (int)((u32)count_exceeded(here.tables + (neuron.table & 0xFFFFFF), bits) * (u32)neuron.weight);
#pragma unroll
    for (int r = 0; r < RECEPTORS; r++)
        if (RECEPTORS == 1 || r == neuron.table >> 24)
            neuron.added[r] = amount;
}

__device__ inline void begin(const Block &here, u32 cell, Neuron &neuron, int after, int until)
{
    neuron.traits = 0;
    i64 everywhere = (i64)blockIdx.x * PLAN[P_CELLS] + cell;
    if (cell >= (u32)PLAN[P_CELLS] || ((const short *)PLAN[P_POPULATION_OF_CELL])[everywhere] < 0)
        return;
    const i64 *population = population_of(here, cell);
    neuron.traits = traits_of(population);
    neuron.table = poisson_table_of(population, after, until);
    neuron.current = PULSES && (neuron.traits & TRAIT_PULSES) ? sum_of_pulses(cell, after + 1) : 0.0f;
    if (neuron.table >= 0)
        neuron.weight = (int)((const i64 *)PLAN[P_POISSONS] + population[Q_POISSON_FIRST] * G_WORDS)[G_WEIGHT];
    load(neuron.state, everywhere);
}

__device__ inline bool step_neuron(const Block &here, int t, u32 cell, Neuron &neuron)
{
    neuron.state[0] = neuron.next.s0;
    neuron.state[1] = neuron.next.s1;
    return update(here, t, cell, neuron.traits, neuron.current, neuron.state, neuron.added);
}

#if FORESIGHT
// Put the neuron into the mail of step t if it spikes then.
__device__ inline void look_ahead(const Block &here, int t, u32 cell, Neuron &neuron)
{
    u32 then[STATE_ROWS];
#pragma unroll
    for (int r = 0; r < STATE_ROWS; r++)
        then[r] = neuron.state[r];
    if (RANDOM_SPIKES) {
        draw_ahead(here, t, cell, neuron);
        then[0] = neuron.next.s0;
        then[1] = neuron.next.s1;
    }
    if (foresee(here, neuron.traits, neuron.current, then) || is_forced(here, t, neuron.traits, cell))
        list_own(here, t, cell);
}
#endif
#endif

// Where the time goes, as thread 0 sees it.
__device__ inline i64 spent(Desk *desk, int on, i64 since)
{
    if (threadIdx.x)
        return 0;
    i64 now = now_in_ticks();
    desk->ticks[on] += now - since;
    return now;
}

// Run the steps after + 1 to until, or stop earlier if a block asks for it.
extern "C" __global__ void __launch_bounds__(THREADS, 1) advance_steps(i64 from, i64 to)
{
    HERE;
    Desk *desk = here.desk;
    const u32 cells = (u32)PLAN[P_CELLS], warp = threadIdx.x / WARP;
    const int after = (int)from, until = (int)to;
    u64 events = 0;

    if (threadIdx.x == 0) {
        *desk = Desk{};
        desk->input = ((const i64 *)PLAN[P_INPUT_STARTS])[blockIdx.x];
        desk->input_end = ((const i64 *)PLAN[P_INPUT_STARTS])[blockIdx.x + 1];
    }
    copy((i64 *)here.populations, (const i64 *)PLAN[P_POPULATION_ROWS], Q_WORDS * PLAN[P_PARTS]);
    copy((u32 *)here.tables, (const u32 *)PLAN[P_TABLES], PLAN[P_TABLE_WORDS]);
    copy(here.constants, (const float *)PLAN[P_CONSTANTS], PLAN[P_CONSTANT_WORDS]);
    copy(here.levels, (const float *)PLAN[P_LEVELS_BEFORE], PLAN[P_MODULATORS]);
    copy(here.signals, (const float *)PLAN[P_SIGNALS_BEFORE], PLAN[P_MODULATORS] + PLAN[P_RHYTHM_COUNT]);
    for (u32 i = threadIdx.x; i < (cells + 31) / 32 * 2; i += THREADS)
        here.forced[i] = 0;
#if RING_IN_SHARED
    int *kept_ring = (int *)PLAN[P_RING] + (i64)blockIdx.x * PLAN[P_SLOTS] * PLAN[P_ACCUMULATORS];
    copy(here.ring, (const int *)kept_ring, PLAN[P_SLOTS] * PLAN[P_ACCUMULATORS]);
#endif
    __syncthreads();
#if STATES_IN_REGISTERS
    Neuron neurons[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++)
        begin(here, CELL, neurons[e], after, until);
#endif

    int t = after;
#if FORESIGHT
    // The mail of the first step: the host may have changed anything since the last launch.
    if (ACTING && threadIdx.x == 0)
        force(t + 1);
    __syncthreads();
    EVERY_NEURON
    {
        look_ahead(here, t + 1, CELL, neurons[e]);
        if (!RANDOM_SPIKES)
            draw_ahead(here, t + 1, CELL, neurons[e]);
    }
    __syncthreads();
    publish(here, t + 1, false);
#endif
    i64 clock = now_in_ticks();
#pragma unroll 1
    while (t < until) {
        t++;
        const int turn = t & 1;
#if STATES_IN_REGISTERS && !FORESIGHT
        EVERY_NEURON draw_ahead(here, t, CELL, neurons[e]);
#endif
        collect(here, t, after);
        if (OUTSIDE_SPIKES)
            collect_outside(t);
        if (ACTING && threadIdx.x == 0 && (desk->forced[0] | desk->forced[1] || desk->input < desk->input_end))
            force(t + FORESIGHT);
        __syncthreads();
        clock = spent(desk, TICKS_WAITING, clock);
        if (desk->lost)
            break;
        const int collected = desk->collected[turn];
        const bool flood = collected > LIST, goes_on = t < until && !desk->stop;
        if (threadIdx.x == 0)
            desk->collected[1 - turn] = desk->own[(t + 2) & 3] = 0;  // nobody needs these any more
#if URGENT
        if (flood)
            events += deliver_flood(t);
        else
            for (int i = (int)warp; i < collected; i += WARPS)
                hurry(here.ring, here.list[turn * LIST + i], t);
#endif
#if PLASTIC
        events += deliver_plastic(t);
#endif
#if SIGNALS
        if (threadIdx.x == 0)
            update_signals(t);
#endif
#if COUNTS_POPULATIONS
        clear_counts(t);
#endif
        if (URGENT || PLASTIC || SIGNALS)
            __syncthreads();
        if (OUTSIDE_SPIKES && threadIdx.x == 0 && (URGENT || !flood))
            pass_outside(t);
        const bool due = PROBES && samples_due(t);
#if AT_ONCE
        Record *const stage = here.stages + warp * AT_ONCE;
        for (int k = 0; k < AT_ONCE; k++)
            if ((int)warp + k * WARPS < collected && !flood)
                ask_for(stage + k, here.list[turn * LIST + warp + k * WARPS]);
#endif
#if STATES_IN_REGISTERS
        EVERY_NEURON
        {
            bool spikes = step_neuron(here, t, CELL, neurons[e]);
            if (due)
                store(neurons[e].state, (i64)blockIdx.x * cells + CELL);
#if FORESIGHT
            if (goes_on)
                look_ahead(here, t + 1, CELL, neurons[e]);
#else
            if (spikes || is_forced(here, t, neurons[e].traits, CELL))
                list_own(here, t, CELL);
#endif
        }
#else
        for (u32 cell = threadIdx.x; cell < cells; cell += THREADS) {
            i64 everywhere = (i64)blockIdx.x * cells + cell;
            if (((const short *)PLAN[P_POPULATION_OF_CELL])[everywhere] < 0)
                continue;
            u32 traits = traits_of(population_of(here, cell)), state[STATE_ROWS];
            int added[RECEPTORS];
            load(state, everywhere);
            if (!is_silent(traits)) {
                Stream stream = poisson(cell, t, Stream{state[0], state[1]}, added);
                state[0] = stream.s0;
                state[1] = stream.s1;
            }
            float current = PULSES && (traits & TRAIT_PULSES) ? sum_of_pulses(cell, t) : 0.0f;
            bool spikes = update(here, t, cell, traits, current, state, added);
            if (spikes || is_forced(here, t, traits, cell))
                list_own(here, t, cell);
            store(state, everywhere);
        }
#endif
        __syncthreads();
        clock = spent(desk, TICKS_UPDATING, clock);
        bool stop = PLAN[P_RECORD_ROOM] - desk->recorded < (LAG + 4) * (i64)cells;
#if PLASTIC
        stop = stop || wants_room();
#endif
#if FORESIGHT
        if (goes_on) {
            publish(here, t + 1, stop);
            if (!RANDOM_SPIKES)
                EVERY_NEURON draw_ahead(here, t + 1, CELL, neurons[e]);
        }
#else
        publish(here, t, stop);
#endif
        clock = spent(desk, TICKS_PUBLISHING, clock);
        if (warp == WARPS - 1)
            note_spikes(here, t);
        int next = (int)warp;
#if AT_ONCE
        wait_for_copies();
        for (int k = 0; k < AT_ONCE && next < collected && !flood; k++, next += WARPS) {
            u32 size = deliver_asked(here.ring, stage + k, here.list[turn * LIST + next], t);
            events += threadIdx.x % WARP == 0 ? size : 0;
        }
        __syncwarp();
#endif
        for (; next < collected && !flood; next += WARPS) {
            u32 size = deliver_rest(here.ring, here.list[turn * LIST + next], t);
            events += threadIdx.x % WARP == 0 ? size : 0;
        }
#if !URGENT
        // Not before the neurons are updated: what is felt after a whole round of the ring would be felt now.
        if (flood) {
            events += deliver_flood(t);
            __syncthreads();  // the next mail is written over what was read
            if (OUTSIDE_SPIKES && threadIdx.x == 0)
                pass_outside(t);
            __syncthreads();
        }
#endif
#if PLASTIC
        learn(t);
#endif
        if (due)
            sample(t);
        clock = spent(desk, TICKS_DELIVERING, clock);
        if (!goes_on)
            break;
    }
    __syncthreads();
#if STATES_IN_REGISTERS
    EVERY_NEURON store(neurons[e].state, (i64)blockIdx.x * cells + CELL);
#endif
#if RING_IN_SHARED
    copy(kept_ring, (const int *)here.ring, PLAN[P_SLOTS] * PLAN[P_ACCUMULATORS]);
#endif
    if (blockIdx.x == 0) {
        // To another place than they came from: in a short launch others may not have begun yet.
        copy((float *)PLAN[P_LEVELS_AFTER], (const float *)here.levels, PLAN[P_MODULATORS]);
        copy((float *)PLAN[P_SIGNALS_AFTER], (const float *)here.signals, PLAN[P_MODULATORS] + PLAN[P_RHYTHM_COUNT]);
        if (threadIdx.x == 0) {
            ((i64 *)PLAN[P_TOTALS])[TOTAL_STEP] = t;
            ((i64 *)PLAN[P_TOTALS])[TOTAL_SAMPLED] = desk->sampled;
            for (int i = 0; i < TICKS_WORDS; i++)
                ((i64 *)PLAN[P_TICKS])[i] += desk->ticks[i];
        }
    }
    if (threadIdx.x == 0) {
        ((int *)PLAN[P_RECORDED])[blockIdx.x] = desk->recorded;
        ((int *)PLAN[P_NOTED])[blockIdx.x] = desk->noted;
        atomicAdd((u64 *)PLAN[P_TOTALS] + TOTAL_HASH, desk->hash);
    }
    if (events)
        atomicAdd((u64 *)PLAN[P_TOTALS] + TOTAL_EVENTS, events);
}

// Put the entries of the last steps that each block has in its own room, which is written round and round, one after the
// other; and count them.
extern "C" __global__ void put_together(const u64 *from, i64 room, const int *counts, i64 steps, u64 *to, u64 *total)
{
    SHARED_ROOM(desk);
    i64 *first = (i64 *)desk, *start = first + 1;
    i64 end = counts[blockIdx.x], after = ((const i64 *)PLAN[P_TOTALS])[TOTAL_STEP] - steps;
    from += (i64)blockIdx.x * room;
    if (threadIdx.x == 0) {
        i64 low = end > room ? end - room : 0, high = end;  // their steps do not fall
        while (low < high) {
            i64 middle = (low + high) / 2;
            if ((i64)(from[middle % room] >> 32) > after)
                high = middle;
            else
                low = middle + 1;
        }
        *first = low;
        *start = (i64)atomicAdd(total, (u64)(end - low));
    }
    __syncthreads();
    for (i64 i = *first + threadIdx.x; i < end; i += blockDim.x)
        to[*start + i - *first] = from[i % room];
}

// Go through spikes that were collected before step `now` ended, one warp for each and block: those of their synapses that
// are felt later are counted, and put into the kept ring if that is asked for.
extern "C" __global__ void gather_pending(const u64 *spikes, i64 n, i64 now, i64 putting)
{
    u64 found = 0;
    int *ring = (int *)PLAN[P_RING] + (i64)blockIdx.x * PLAN[P_SLOTS] * PLAN[P_ACCUMULATORS];
    for (i64 i = threadIdx.x / WARP; i < n; i += blockDim.x / WARP) {
        i64 step = (i64)(spikes[i] >> 32);
        const Record *record = record_of((u32)spikes[i]);
        Head head = record->head;
        for (u32 k = threadIdx.x % WARP; k < head.size; k += WARP) {
            Word word = word_at(record, words_of(head), k);
            if (step + delay_of(word) <= now)
                continue;
            found++;
            if (putting)
                feel(ring, word, head.shift, (u32)step);
        }
    }
    if (found)
        atomicAdd((u64 *)PLAN[P_TOTALS] + TOTAL_PENDING, found);
}
