// Plastic synapses, as in engine/cpu/learning.py, which explains the order of events and the lazy evaluation. A block holds the
// synapses onto its neurons. Every block keeps its own copy of the state of a segment (source and delay); all copies are equal.
//
// A plastic synapse is delivered in the step in which the spike arrives, from the messages of earlier steps.

struct Plastic {  // the part of a table that one block holds
    const PlasticTable *row;
    u32 *index;  // [segments + 1]
    u32 *cells;  // of the targets
    float *weights, *eligibilities;
    int *last, *applied;
    float *trace, *resource;
    const Parameters *p;
    int kind, classes;
    u32 segments;
};

__device__ inline Plastic plastic_table(i64 i)
{
    Plastic table;
    const PlasticTable *row = table.row = layout.plastic_tables + i;
    i64 first = row->starts[blockIdx.x];
    table.segments = (u32)row->segments;
    i64 mine = (i64)blockIdx.x * table.segments;
    bool remembers = row->kind != PLAIN;
    table.index = row->index + (i64)blockIdx.x * (table.segments + 1);
    table.cells = row->cells + first;
    table.weights = row->weights + first;
    table.eligibilities = row->eligibilities + (row->kind == REWARD ? first : 0);
    table.last = row->last + (remembers ? mine : 0);
    table.applied = row->applied + (remembers ? mine : 0);
    table.trace = row->trace + (remembers ? mine : 0);
    table.resource = row->resource + (row->kind == SHORT_TERM ? mine : 0);
    table.p = row->parameters;
    table.kind = (int)row->kind;
    table.classes = (int)row->classes;
    return table;
}

__device__ inline int delay_of_class(const Plastic &table, u32 c) { return (int)table.row->delays[c]; }

// The index of a target in its slice.
__device__ inline i64 place_of(const Plastic &table, u32 cell) { return (i64)cell * layout.blocks + blockIdx.x - table.row->post_place; }

// `value` after `steps` steps; the table has a factor for each digit of the steps.
__device__ inline float decayed(float value, const float *table, i64 steps)
{
    u64 n = (u64)steps;
    float low = table[n & (DECAY_CELLS - 1)] * table[DECAY_CELLS + ((n / DECAY_CELLS) & (DECAY_CELLS - 1))];
    if (n < DECAY_CELLS * DECAY_CELLS)
        return value * low;
    u64 high = n / (DECAY_CELLS * DECAY_CELLS);
    return value * (low * table[2 * DECAY_CELLS + (high < DECAY_CELLS - 1 ? high : DECAY_CELLS - 1)]);
}

__device__ inline float raised(float x, float mu) { return mu == 0.0f ? 1.0f : mu == 1.0f ? x : power_of_positive_f(x, mu); }

// A weight after a spike of the target (potentiation).
__device__ inline float potentiated(int kind, float w, float k, const Parameters *p)
{
    float w_max = p->w_max;
    if (kind == STDP_BOUNDED) {
        float x = w / w_max;
        x = x + p->rate_plus * raised(1.0f - x, p->mu_plus) * k;
        return min_of<float>(x, 1.0f) * w_max;
    }
    return min_of<float>(w + p->rate_plus * raised(w, p->mu_plus) * k, w_max);
}

// A weight after a spike of the source.
__device__ inline float depressed(int kind, float w, float k, const Parameters *p)
{
    if (kind == STDP_BOUNDED) {
        float w_max = p->w_max, x = w / w_max;
        x = x - p->rate_minus * raised(x, p->mu_minus) * k;
        return max_of<float>(x, 0.0f) * w_max;
    }
    return max_of<float>(w - p->rate_minus * w * k, 0.0f);
}

struct History {  // the recent spikes of a target
    int count, oldest;
    u32 mask;
    const int *steps;
    const float *traces;
};

__device__ inline History history_of(const Plastic &table, i64 place)
{
    i64 capacity = table.row->capacity;
    History history;
    history.count = table.row->post_count[place];
    history.oldest = max_of<int>(0, history.count - (int)capacity);
    history.mask = (u32)capacity - 1;
    history.steps = table.row->post_steps + place * capacity;
    history.traces = table.row->post_traces + place * capacity;
    return history;
}

// The number of spikes of a target that have reached the synapse by step `until`.
__device__ inline int count_arrived(const History &history, int delay, int until)
{
    int m = history.count;
    while (m > history.oldest && history.steps[(u32)(m - 1) & history.mask] + delay > until)
        m--;
    return m;
}

// `value` (weight or eligibility) after those of the first m spikes of a target that arrived after step `after`.
__device__ inline float after_post_spikes(const Plastic &table, float value, const History &history, int m, int delay, int after, int last, float trace)
{
    int first = m;
    while (first > history.oldest && history.steps[(u32)(first - 1) & history.mask] + delay > after)
        first--;
    for (int i = first; i < m; i++) {
        float then = decayed(trace, table.row->decay_plus, history.steps[(u32)i & history.mask] + delay - last);
        if (table.kind == REWARD)
            value = value + table.p->rate_plus * then;
        else
            value = potentiated(table.kind, value, then, table.p);
    }
    return value;
}

// Kminus of a target at step `before`, from those of its first m spikes that are earlier.
__device__ inline float post_trace(const Plastic &table, const History &history, int m, int before)
{
    if (m > history.oldest && history.steps[(u32)(m - 1) & history.mask] >= before)
        m--;
    if (m <= history.oldest)
        return 0.0f;
    u32 at = (u32)(m - 1) & history.mask;
    return decayed(history.traces[at], table.row->decay_minus, before - history.steps[at]);
}

// Deliver a spike of `source` to the targets of one delay class, with one warp.
COLD u32 deliver_plastic_segment(i64 which, u32 source, u32 c, int now)
{
    LOCATE_BLOCK;
    const Plastic table = plastic_table(which);
    u32 lane = threadIdx.x % WARP, s = source * (u32)table.classes + c;
    u32 start = table.index[s], end = table.index[s + 1];
    int delay = delay_of_class(table, c), emitted = now - delay;
    int *slot = arriving_in(here, (int)now) + (u32)(table.row->receptor * layout.cells);
    float inverse_lsb = table.p->inverse_lsb;
    const float *decay_plus = table.row->decay_plus;
    if (table.kind == PLAIN || table.kind == SHORT_TERM) {
        if (table.kind == SHORT_TERM) {  // the fraction of the weight that is transmitted (Tsodyks and Markram)
            int last = table.last[s];
            float u = table.trace[s], x = table.resource[s], given = table.p->u;
            if (last > 0) {
                float recovery = decayed(1.0f, decay_plus, emitted - last);
                float facilitation = decayed(1.0f, table.row->decay_facilitation, emitted - last);
                x = 1.0f + (x - x * u - 1.0f) * recovery;
                u = given + u * (1.0f - given) * facilitation;
            }
            inverse_lsb = inverse_lsb * (u * x);
            __syncwarp();
            if (lane == 0) {
                table.trace[s] = u;
                table.resource[s] = x;
                table.last[s] = emitted;
            }
        }
        for (u32 j = start + lane; j < end; j += WARP)
            atomicAdd(slot + table.cells[j], (int)rintf(table.weights[j] * inverse_lsb));
        return end - start;
    }
    int last = table.last[s], after = table.applied[s];
    float trace = table.trace[s];
    bool frozen = table.row->frozen != 0;
    for (u32 j = start + lane; j < end; j += WARP) {
        u32 cell = table.cells[j];
        float weight = table.weights[j];
        if (!frozen) {
            const History history = history_of(table, place_of(table, cell));
            float value = table.kind == REWARD ? table.eligibilities[j] : weight;
            int m = count_arrived(history, delay, emitted);
            value = after_post_spikes(table, value, history, m, delay, after, last, trace);
            float post = post_trace(table, history, m, emitted - delay);
            if (table.kind == REWARD)
                table.eligibilities[j] = value - table.p->rate_minus * post;
            else
                table.weights[j] = weight = depressed(table.kind, value, post, table.p);
        }
        atomicAdd(slot + cell, (int)rintf(weight * inverse_lsb));
    }
    __syncwarp();
    if (lane == 0) {
        table.trace[s] = decayed(trace, decay_plus, emitted - last) + 1.0f;
        table.last[s] = emitted;
        table.applied[s] = emitted;
    }
    return end - start;
}

// Origins of spikes: every block, and the other shards.
#define ORIGINS ((u32)layout.blocks + OUTSIDE_SPIKES)

// Call `found(source)` for each spike of one step from the sources of a table. `origin` is a block, whose message has its spikes,
// or the number of blocks, for the list of spikes of other shards, which is ordered by step.
template <typename Found> __device__ inline void for_each_spike(const PlasticTable *row, int step, u32 origin, Found found)
{
    if (OUTSIDE_SPIKES && origin == (u32)layout.blocks) {
        i64 at = step - layout.past_first;
        if (row->pre_outside < 0 || at < 0 || at >= layout.past_steps)
            return;
        const i64 *starts = layout.past_starts + at;
        for (i64 i = starts[0]; i < starts[1]; i++) {
            i64 source = (i64)layout.past[i] - row->pre_outside;
            if (source >= 0 && source < row->pre_all)
                found((u32)source);
        }
        return;
    }
    u64 low, high;
    read_message(layout.messages + 2 * message_of(step, origin), low, high);
    u32 count = (u32)(low >> 32) & (STOP_FLAG - 1);
    for (u32 k = 0; k < count; k++) {
        i64 q = (i64)id_at(low, high, count, k, step, origin) * layout.blocks + origin - row->pre_place;
        if (q >= 0 && q < row->pre_n)
            found((u32)(q + row->pre_first));
    }
}

// Deliver the spikes that arrive at plastic synapses in step t.
COLD u64 deliver_plastic(int t)
{
    LOCATE_BLOCK;
    Control *control = here.control;
    u32 warp = threadIdx.x / WARP, origins = ORIGINS;
    u64 events = 0;
    for (i64 i = 0; i < layout.plastic_count; i++) {
        const PlasticTable *row = layout.plastic_tables + i;
        u32 pairs = (u32)row->classes * origins;  // of a delay class and an origin
        for (u32 pair = threadIdx.x; pair < pairs; pair += THREADS) {
            u32 c = pair / origins;
            int step = t - (int)row->delays[c];
            if (step >= 1)
                for_each_spike(row, step, pair % origins, [&](u32 source) {
                    int at = atomicAdd(&control->arriving, 1);
                    if (at < ARRIVING)
                        here.arriving[at] = (u64)i << 48 | (u64)c << 32 | source;
                });
        }
    }
    __syncthreads();
    int arriving = control->arriving;
    for (int i = (int)warp; i < arriving && arriving <= ARRIVING; i += WARPS) {
        u64 one = here.arriving[i];
        u32 size = deliver_plastic_segment((i64)(one >> 48), (u32)one, (u32)(one >> 32) & 0xFFFF, t);
        events += threadIdx.x % WARP == 0 ? size : 0;
    }
    if (arriving > ARRIVING) {  // the list has overflowed: every warp goes through all spikes and takes its share
        u32 taken = 0;
        for (i64 i = 0; i < layout.plastic_count; i++) {
            const PlasticTable *row = layout.plastic_tables + i;
            for (u32 c = 0; c < (u32)row->classes; c++) {
                int step = t - (int)row->delays[c];
                for (u32 origin = 0; step >= 1 && origin < origins; origin++)
                    for_each_spike(row, step, origin, [&](u32 source) {
                        if (taken++ % WARPS == warp) {
                            u32 size = deliver_plastic_segment(i, source, c, t);
                            events += threadIdx.x % WARP == 0 ? size : 0;
                        }
                    });
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0)
        control->arriving = 0;
    return events;
}

// True if the history of a target with n spikes so far has no room for SLACK + 2 more, which may occur until all blocks have
// received the request to stop; the history must then be flushed or enlarged.
#define SLACK (LAG + 4)

__device__ inline bool is_history_full(const PlasticTable *row, int n, const int *steps)
{
    int capacity = (int)row->capacity, newest = n + 2 + SLACK;
    if (newest - 2 < capacity - 1)
        return false;
    i64 longest = row->delays[row->classes - 1];
    i64 second = newest >= capacity ? steps[(u32)newest & (u32)(capacity - 1)] : 0;
    return second + 2 * longest > row->flushed[blockIdx.x];
}

// Record a spike of a target (its index in its slice) in this step.
COLD void record_post_spike(i64 i, i64 place, int step)
{
    const PlasticTable *row = layout.plastic_tables + i;
    if (row->scale_every > 0)
        row->scale_count[place]++;
    if (row->kind == PLAIN || row->kind == SHORT_TERM)
        return;
    i64 capacity = row->capacity;
    int *steps = row->post_steps + place * capacity;
    float *traces = row->post_traces + place * capacity;
    int n = row->post_count[place];
    float trace = 1.0f;
    if (n > 0) {
        u32 before = (u32)(n - 1) & (u32)(capacity - 1);
        trace = decayed(traces[before], row->decay_minus, step - steps[before]) + 1.0f;
    }
    steps[(u32)n & (u32)(capacity - 1)] = step;
    traces[(u32)n & (u32)(capacity - 1)] = trace;
    row->post_count[place] = n + 1;
    if (is_history_full(row, n + 1, steps))
        ((volatile int *)layout.full)[blockIdx.x] = 1;
}

// True if the history of a target of this block is full.
__device__ inline bool is_any_history_full() { return ((volatile const int *)layout.full)[blockIdx.x] != 0; }

// Apply all target spikes that can be applied after step `now` to the block's synapses of a table; called by the whole block.
COLD void flush_table(i64 i, int now)
{
    const Plastic table = plastic_table(i);
    if (threadIdx.x == 0)
        table.row->flushed[blockIdx.x] = now;
    if (table.kind == PLAIN || table.kind == SHORT_TERM)
        return;
    for (u32 s = threadIdx.x / WARP; s < table.segments; s += blockDim.x / WARP) {
        int delay = delay_of_class(table, s % (u32)table.classes), until = now - delay, after = table.applied[s];
        if (until <= after)
            continue;
        float trace = table.trace[s];
        if (trace > 0.0f && !table.row->frozen) {
            for (u32 j = table.index[s] + threadIdx.x % WARP; j < table.index[s + 1]; j += WARP) {
                const History history = history_of(table, place_of(table, table.cells[j]));
                // Most targets have not spiked since then. (Step 0 stands for a target that never did.)
                if (history.steps[(u32)(history.count - 1) & history.mask] <= after - delay)
                    continue;
                float value = table.kind == REWARD ? table.eligibilities[j] : table.weights[j];
                int m = count_arrived(history, delay, until);
                value = after_post_spikes(table, value, history, m, delay, after, table.last[s], trace);
                (table.kind == REWARD ? table.eligibilities : table.weights)[j] = value;
            }
        }
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            table.applied[s] = until;
    }
}

// Periodic changes of all weights of a table; called by the whole block.
COLD void change_weights(i64 i, int t, bool rewarded, bool scaled)
{
    LOCATE_BLOCK;
    const Plastic table = plastic_table(i);
    const Parameters *p = table.p;
    u32 synapses = table.index[table.segments];
    bool frozen = table.row->frozen != 0;
    flush_table(i, t);
    __syncthreads();
    if (rewarded) {
        i64 place = table.row->level;
        float level = place < layout.modulators ? here.levels[place] : here.signals[place];
        float low = p->w_min, high = p->w_max, decay = p->eligibility_decay, forget = p->forget;
        if (frozen)
            level = 0.0f, forget = 1.0f;
        for (u32 j = threadIdx.x; j < synapses; j += THREADS) {
            float weight = table.weights[j], eligibility = table.eligibilities[j];
            if (forget < 1.0f)
                weight = low + (weight - low) * forget;
            table.weights[j] = min_of<float>(max_of<float>(weight + level * eligibility, low), high);
            float left = eligibility * decay;
            table.eligibilities[j] = fabsf(left) < bits_to_f(SMALLEST_STORED) ? 0.0f : left;
        }
        __syncthreads();
    }
    if (scaled) {
        int *count = table.row->scale_count;
        float strength = p->scale_strength, wanted = p->scale_target;
        for (u32 j = threadIdx.x; j < synapses && !frozen; j += THREADS) {
            float spikes = (float)count[place_of(table, table.cells[j])];
            float factor = 1.0f + strength * ((wanted - spikes) / wanted);
            table.weights[j] = min_of<float>(max_of<float>(table.weights[j] * factor, p->scale_w_min), p->scale_w_max);
        }
        __syncthreads();
        for (u32 cell = threadIdx.x; cell < (u32)layout.cells; cell += THREADS) {
            i64 place = place_of(table, cell);
            if (place >= 0 && place < table.row->post_n)
                count[place] = 0;
        }
        __syncthreads();
    }
}

// Apply periodic changes, after the spikes of step t were recorded.
__device__ inline void learn(int t)
{
    __syncthreads();
    for (i64 i = 0; i < layout.plastic_count; i++) {
        const PlasticTable *row = layout.plastic_tables + i;
        bool rewarded = row->every > 0 && t % (int)row->every == 0;
        bool scaled = row->scale_every > 0 && t % (int)row->scale_every == 0;
        if (rewarded || scaled)
            change_weights(i, t, rewarded, scaled);
    }
}

// Bring all plastic weights up to date, and check which histories of target spikes are full.
extern "C" __global__ void __launch_bounds__(THREADS, 1) flush_plastic(i64 now)
{
    for (i64 i = 0; i < layout.plastic_count; i++)
        flush_table(i, (int)now);
    __syncthreads();
    if (threadIdx.x == 0)
        layout.full[blockIdx.x] = 0;
    __syncthreads();
    for (i64 i = 0; i < layout.plastic_count; i++) {
        const PlasticTable *row = layout.plastic_tables + i;
        if (row->kind == PLAIN || row->kind == SHORT_TERM)
            continue;
        for (i64 cell = threadIdx.x; cell < layout.cells; cell += blockDim.x) {
            i64 place = cell * layout.blocks + blockIdx.x - row->post_place;
            if (place >= 0 && place < row->post_n &&
                is_history_full(row, row->post_count[place], row->post_steps + place * row->capacity))
                ((volatile int *)layout.full)[blockIdx.x] = 1;
        }
    }
}
