// The kernel that runs steps. Blocks of the grid communicate by messages only (exchange.cuh). Step t of a block:
//   collect         the messages of step t - LAG from every block, and the spikes of other shards
//   deliver_urgent  the synapses that take effect in step t itself (URGENT: LAG is the shortest delay)
//   update          Poisson input and neurons; publish the spikes of step t
//   deliver         the other synapses of the collected spikes, while the messages of other blocks are in transit
//
// If the input of a step cannot change which neurons spike in that step (LOOKAHEAD, for all models), a block publishes the
// spikes of step t at the end of step t - 1, and LAG is 0. No delivery is urgent then: synapses that take effect in step
// t + 1 are delivered in step t.

#include "tables.cuh"
#include "block.cuh"
#include "delivery.cuh"
#include "exchange.cuh"
#if PLASTIC
#include "plastic.cuh"
#endif
#include "neurons.cuh"
#include "signals.cuh"

__device__ inline void load(u32 *state, i64 global_cell)
{
#pragma unroll
    for (int r = 0; r < STATE_ROWS; r++)
        state[r] = layout.states[r * layout.blocks * layout.cells + global_cell];
}

__device__ inline void store(const u32 *state, i64 global_cell)
{
#pragma unroll
    for (int r = 0; r < STATE_ROWS; r++)
        layout.states[r * layout.blocks * layout.cells + global_cell] = state[r];
}

// A neuron in the registers of its thread: its states, the Poisson input of its next step, and the random stream after it.
// If the states of all neurons fit (STATES_IN_REGISTERS) they stay there; otherwise a thread loads, updates and stores
// NEURONS_PER_THREAD neurons at a time.
struct Neuron {
    u32 traits;
    int table, weight;
    float current;
    u32 state[STATE_ROWS];
    Stream next;
    int added[RECEPTORS];
};

#define FOR_EACH_NEURON _Pragma("unroll") for (int e = 0; e < NEURONS_PER_THREAD; e++) if (neurons[e].traits)
#define CELL (first + threadIdx.x + e * THREADS)

// Draw the Poisson input of step t, which does not depend on messages.
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
    int amount = (int)((u32)count_exceeded(here, neuron.table, bits) * (u32)neuron.weight);
#pragma unroll
    for (int r = 0; r < RECEPTORS; r++)
        if (RECEPTORS == 1 || r == TABLE_RECEPTOR(neuron.table))
            neuron.added[r] = amount;
}

// Load the neurons of a thread; those that do not exist have no traits. All loads are independent of each other.
__device__ inline void load_neurons(const Block &here, u32 first, Neuron (&neurons)[NEURONS_PER_THREAD], int after)
{
    const u32 cells = (u32)layout.cells;
    const i64 mine = (i64)blockIdx.x * cells;
    int parts[NEURONS_PER_THREAD];
#pragma unroll
    for (int e = 0; e < NEURONS_PER_THREAD; e++)
        parts[e] = read_only(layout.population_of_cell + mine + min_of<u32>(CELL, cells - 1));
#pragma unroll
    for (int e = 0; e < NEURONS_PER_THREAD; e++)
        load(neurons[e].state, mine + min_of<u32>(CELL, cells - 1));
#pragma unroll
    for (int e = 0; e < NEURONS_PER_THREAD; e++) {
        bool there = CELL < cells && parts[e] >= 0;
        Brief brief = there ? here.briefs[parts[e]] : Brief{};
        neurons[e].traits = brief.traits;
        neurons[e].table = brief.table;
        neurons[e].weight = brief.weight;
        neurons[e].current = PULSES && (brief.traits & TRAIT_PULSES) ? sum_of_pulses(CELL, after + 1) : 0.0f;
    }
}

__device__ inline void store_neurons(u32 first, const Neuron (&neurons)[NEURONS_PER_THREAD])
{
    FOR_EACH_NEURON store(neurons[e].state, (i64)blockIdx.x * layout.cells + CELL);
}

__device__ inline bool step_neuron(const Block &here, int t, u32 cell, Neuron &neuron)
{
    neuron.state[0] = neuron.next.s0;
    neuron.state[1] = neuron.next.s1;
    return update(here, t, cell, neuron.traits, neuron.current, neuron.state, neuron.added);
}

#if LOOKAHEAD
// List the neuron among the spikes of step t if it spikes then.
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
    if (spikes_next(here, t, neuron.traits, neuron.current, then) || is_forced(here, t, neuron.traits, cell))
        list_own(here, t, cell);
}
#endif

// Advance the neurons of a thread by step t, and list those that spike; `due`: samples of their states are taken.
__device__ inline void step_neurons(const Block &here, int t, u32 first, Neuron (&neurons)[NEURONS_PER_THREAD], bool due, bool goes_on, u64 &hashed)
{
    FOR_EACH_NEURON
    {
        bool spikes = step_neuron(here, t, CELL, neurons[e]);
#if RATES
        hashed += transmit(t, CELL, neurons[e].traits, neurons[e].state);
#endif
        if (due || !STATES_IN_REGISTERS)
            store(neurons[e].state, (i64)blockIdx.x * layout.cells + CELL);
#if LOOKAHEAD
        if (goes_on)
            look_ahead(here, t + 1, CELL, neurons[e]);
#else
        if (spikes || is_forced(here, t, neurons[e].traits, CELL))
            list_own(here, t, CELL);
#endif
    }
}

#if STATES_IN_REGISTERS
#define FOR_EACH_BATCH const u32 first = 0;
#else
#define FOR_EACH_BATCH _Pragma("unroll 1") for (u32 first = 0; first < cells; first += NEURONS_PER_THREAD * THREADS)
#endif

// Add the time since `since` to a counter (thread 0 only).
__device__ inline i64 add_ticks(i64 &ticks, i64 since)
{
    if (threadIdx.x)
        return 0;
    i64 now = now_in_ticks();
    ticks += now - since;
    return now;
}

// Run the steps after + 1 to until, or fewer if a block requests a stop.
extern "C" __global__ void __launch_bounds__(THREADS, 1) advance_steps(i64 from, i64 to)
{
    LOCATE_BLOCK;
    Control *control = here.control;
    const u32 cells = (u32)layout.cells, warp = threadIdx.x / WARP;
    const int after = (int)from, until = (int)to;
    u64 events = 0, hashed = 0;

    if (threadIdx.x == 0) {
        *control = Control{};
        control->input = layout.input_starts[blockIdx.x];
        control->input_end = layout.input_starts[blockIdx.x + 1];
    }
    copy((i64 *)here.populations, (const i64 *)layout.population_rows, sizeof(Population) / 8 * layout.parts);
    copy((u32 *)here.tables, layout.poisson_tables, layout.poisson_words);
    copy(here.constants, layout.constants, layout.constant_words);
    copy(here.levels, layout.levels_before, layout.modulators);
    copy(here.signals, layout.signals_before, layout.modulators + layout.rhythm_count);
    for (u32 i = threadIdx.x; i < (cells + 31) / 32 * 2; i += THREADS)
        here.forced[i] = 0;
#if RING_IN_SHARED
    int *global_ring = layout.ring + (i64)blockIdx.x * layout.slots * layout.accumulators;
    copy(here.ring, (const int *)global_ring, layout.slots * layout.accumulators);
#endif
#if QUEUED
    for (u32 i = threadIdx.x; i < (u32)layout.accumulators; i += THREADS)
        here.sums[i] = 0;
    for (u32 i = threadIdx.x; i < (u32)layout.slots; i += THREADS)
        here.queued[i] = 0;
#endif
    __syncthreads();
    brief(here, after, until);
    __syncthreads();
#if STATES_IN_REGISTERS
    Neuron neurons[NEURONS_PER_THREAD];
    load_neurons(here, 0, neurons, after);
#endif

    int t = after;
#if LOOKAHEAD
    // Publish the first step again: the host may have changed anything since the last launch.
    if (INTERVENTIONS && threadIdx.x == 0)
        force(t + 1);
    __syncthreads();
    FOR_EACH_BATCH
    {
#if !STATES_IN_REGISTERS
        Neuron neurons[NEURONS_PER_THREAD];
        load_neurons(here, first, neurons, after);
#endif
        FOR_EACH_NEURON
        {
            look_ahead(here, t + 1, CELL, neurons[e]);
            if (STATES_IN_REGISTERS && !RANDOM_SPIKES)
                draw_ahead(here, t + 1, CELL, neurons[e]);
        }
    }
    __syncthreads();
    publish(here, t + 1, false);
#endif
    i64 clock = now_in_ticks();
#pragma unroll 1
    while (t < until) {
        t++;
        const int turn = t & 1;
#if STATES_IN_REGISTERS && !LOOKAHEAD
        {
            const u32 first = 0;
            FOR_EACH_NEURON draw_ahead(here, t, CELL, neurons[e]);
        }
#endif
        collect(here, t, after);
        if (OUTSIDE_SPIKES)
            collect_outside(t);
        if (INTERVENTIONS && threadIdx.x == 0 && (control->forced[0] | control->forced[1] || control->input < control->input_end))
            force(t + LOOKAHEAD);
        __syncthreads();
        clock = add_ticks(control->ticks.waiting, clock);
        if (control->lost)
            break;
        const int collected = control->collected[turn];
        const bool overflow = collected > LIST, goes_on = t < until && !control->stop;
        if (threadIdx.x == 0)
            control->collected[1 - turn] = control->own[(t + 2) & 3] = 0;  // no longer needed
#if COMPACT
        list_collected(here, t);
        if (COUNTS_POPULATIONS)
            __syncthreads();
#endif
#if QUEUED
        empty_queue(here, t, after);
#endif
#if URGENT
        if (overflow)
            events += deliver_overflow(t);
        else
            for (int i = (int)warp; i < collected; i += WARPS)
                deliver_urgent(here.ring, here.list[turn * LIST + i], t);
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
        if (OUTSIDE_SPIKES && threadIdx.x == 0 && (URGENT || !overflow))
            advance_outside(t);
        const bool due = PROBES && samples_due(t);
#if PREFETCHED
        Record *const stage = here.stages + warp * PREFETCHED;
        for (int k = 0; k < PREFETCHED; k++)
            if ((int)warp + k * WARPS < collected && !overflow)
                prefetch_record(stage + k, here.list[turn * LIST + warp + k * WARPS]);
#endif
        FOR_EACH_BATCH
        {
#if !STATES_IN_REGISTERS
            Neuron neurons[NEURONS_PER_THREAD];
            load_neurons(here, first, neurons, after);
            FOR_EACH_NEURON draw_ahead(here, t, CELL, neurons[e]);
#endif
            step_neurons(here, t, first, neurons, due, goes_on, hashed);
        }
        __syncthreads();
        clock = add_ticks(control->ticks.updating, clock);
        bool stop = layout.record_room - control->recorded < (LAG + 4) * (i64)cells;
#if PLASTIC
        stop = stop || is_any_history_full();
#endif
#if LOOKAHEAD
        if (goes_on) {
            publish(here, t + 1, stop);
#if STATES_IN_REGISTERS
            const u32 first = 0;
            if (!RANDOM_SPIKES)
                FOR_EACH_NEURON draw_ahead(here, t + 1, CELL, neurons[e]);
#endif
        }
#else
        publish(here, t, stop);
#endif
        clock = add_ticks(control->ticks.publishing, clock);
        if (warp == WARPS - 1)
            record_spikes(here, t);
#if COMPACT
        if (!overflow)
            events += deliver_listed(here, here.list + turn * LIST, (u32)collected, t);
#else
        int next = (int)warp;
#if PREFETCHED
        wait_for_copies();
        for (int k = 0; k < PREFETCHED && next < collected && !overflow; k++, next += WARPS) {
            u32 size = deliver_prefetched(here.ring, stage + k, here.list[turn * LIST + next], t);
            events += threadIdx.x % WARP == 0 ? size : 0;
        }
        __syncwarp();
#endif
        for (; next < collected && !overflow; next += WARPS) {
            u32 size = deliver_rest(here.ring, here.list[turn * LIST + next], t);
            events += threadIdx.x % WARP == 0 ? size : 0;
        }
#endif
#if !URGENT
        // After the update of neurons: a delay of a whole ring length would otherwise take effect now.
        if (overflow) {
            events += deliver_overflow(t);
            __syncthreads();  // the next messages overwrite the ones just read
            if (OUTSIDE_SPIKES && threadIdx.x == 0)
                advance_outside(t);
            __syncthreads();
        }
#endif
#if PLASTIC
        learn(t);
#endif
        if (due)
            sample(t);
        clock = add_ticks(control->ticks.delivering, clock);
        if (!goes_on)
            break;
    }
    __syncthreads();
#if STATES_IN_REGISTERS
    store_neurons(0, neurons);
#endif
#if QUEUED
    return_queues();
#endif
#if RING_IN_SHARED
    copy(global_ring, (const int *)here.ring, layout.slots * layout.accumulators);
#endif
    if (blockIdx.x == 0) {
        // Not in place: in a short launch other blocks may not have read the old values yet.
        copy(layout.levels_after, (const float *)here.levels, layout.modulators);
        copy(layout.signals_after, (const float *)here.signals, layout.modulators + layout.rhythm_count);
        if (threadIdx.x == 0) {
            layout.totals->step = t;
            layout.totals->sampled = control->sampled;
            layout.ticks->waiting += control->ticks.waiting;
            layout.ticks->updating += control->ticks.updating;
            layout.ticks->publishing += control->ticks.publishing;
            layout.ticks->delivering += control->ticks.delivering;
        }
    }
    if (threadIdx.x == 0) {
        layout.recorded[blockIdx.x] = control->recorded;
        layout.recent[blockIdx.x] = control->recent;
        atomicAdd(&layout.totals->hash, control->hash);
    }
    if (events)
        atomicAdd(&layout.totals->events, events);
    if (RATES)
        atomicAdd(&layout.totals->hash, hashed);
}

// Concatenate the entries of the last steps from the ring buffers of all blocks, and count them.
extern "C" __global__ void compact(const u64 *from, i64 room, const int *counts, i64 steps, u64 *to, u64 *total)
{
    SHARED_ROOM(control);
    i64 *first = (i64 *)control, *start = first + 1;
    i64 end = counts[blockIdx.x], after = layout.totals->step - steps;
    from += (i64)blockIdx.x * room;
    if (threadIdx.x == 0) {
        i64 low = end > room ? end - room : 0, high = end;  // steps are in ascending order
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

// Count the synapses of already collected spikes that take effect after step `now`, and add them to the ring buffer if
// `into_ring` is set. One warp handles a spike in each block.
extern "C" __global__ void gather_pending(const u64 *spikes, i64 n, i64 now, i64 into_ring)
{
    u64 found = 0;
    int *ring = layout.ring + (i64)blockIdx.x * layout.slots * layout.accumulators;
    for (i64 i = threadIdx.x / WARP; i < n; i += blockDim.x / WARP) {
        i64 step = (i64)(spikes[i] >> 32);
#if COMPACT
        const Span head = span_of((u32)spikes[i]);
        const u32 size = head.end - head.first;
        const Word *words = layout.words[blockIdx.x] + head.first;
#else
        const Record *record = record_of((u32)spikes[i]);
        const Head head = record->head;
        const u32 size = head.size;
        const Word *words = words_of(head);
#endif
        for (u32 k = threadIdx.x % WARP; k < size; k += WARP) {
#if COMPACT
            Word word = words[k];
#else
            Word word = word_at(record, words, k);
#endif
            if (step + delay_of(word) <= now)
                continue;
            found++;
            if (into_ring)
                deliver_synapse(ring, word, head.shift, (u32)step);
        }
    }
    if (found)
        atomicAdd(&layout.totals->pending, found);
}
