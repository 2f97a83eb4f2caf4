// Plastic synapses: what engine/learning.py does, with the synapses onto a block's neurons in that block. See there for what
// happens when, and why the work of a target's spike may be done later. What belongs to a segment (source and delay) is kept
// by every block, and comes out alike in all of them.
//
// A plastic synapse is delivered in the step in which the spike arrives. The spikes of the steps before are still in the mail.

struct Plastic {  // a table as one block sees it
    const i64 *row;
    u32 *index;  // [segments + 1]
    u32 *cells;  // of the targets
    float *weights, *eligibilities;
    int *last, *applied;
    float *trace, *resource;
    const float *p;
    int kind, classes;
    u32 segments;
};

__device__ inline Plastic plastic_table(i64 i)
{
    Plastic table;
    const i64 *row = table.row = (const i64 *)PLAN[P_PLASTICS] + i * T_WORDS;
    i64 first = ((const i64 *)row[T_STARTS])[blockIdx.x];
    table.segments = (u32)row[T_SEGMENTS];
    i64 mine = (i64)blockIdx.x * table.segments;
    bool remembers = row[T_KIND] != PLAIN;
    table.index = (u32 *)row[T_INDEX] + (i64)blockIdx.x * (table.segments + 1);
    table.cells = (u32 *)row[T_CELLS] + first;
    table.weights = (float *)row[T_WEIGHTS] + first;
    table.eligibilities = (float *)row[T_ELIGIBILITIES] + (row[T_KIND] == REWARD ? first : 0);
    table.last = (int *)row[T_LAST] + (remembers ? mine : 0);
    table.applied = (int *)row[T_APPLIED] + (remembers ? mine : 0);
    table.trace = (float *)row[T_TRACE] + (remembers ? mine : 0);
    table.resource = (float *)row[T_RESOURCE] + (row[T_KIND] == SHORT_TERM ? mine : 0);
    table.p = (const float *)row[T_PARAMETERS];
    table.kind = (int)row[T_KIND];
    table.classes = (int)row[T_CLASSES];
    return table;
}

__device__ inline int delay_of_class(const Plastic &table, u32 c) { return (int)((const i64 *)table.row[T_DELAYS])[c]; }

// The place in the post population of a target.
__device__ inline i64 place_of(const Plastic &table, u32 cell) { return (i64)cell * PLAN[P_BLOCKS] + blockIdx.x - table.row[T_POST_PLACE]; }

__device__ inline float decayed(float value, const float *table, i64 steps)
{
    u64 n = (u64)steps;
    float low = table[n & (DECAY_CELLS - 1)] * table[DECAY_CELLS + ((n / DECAY_CELLS) & (DECAY_CELLS - 1))];
    if (n < DECAY_CELLS * DECAY_CELLS)
        return value * low;
    u64 high = n / (DECAY_CELLS * DECAY_CELLS);
    return value * (low * table[2 * DECAY_CELLS + (high < DECAY_CELLS - 1 ? high : DECAY_CELLS - 1)]);
}

__device__ inline float raised(float x, float mu) { return mu == 0.0f ? 1.0f : mu == 1.0f ? x : power_f(x, mu); }

__device__ inline float facilitated(int kind, float w, float k, const float *p)
{
    float w_max = p[F_W_MAX];
    if (kind == STDP_BOUNDED) {
        float x = w / w_max;
        x = x + p[F_RATE_PLUS] * raised(1.0f - x, p[F_MU_PLUS]) * k;
        return min_of<float>(x, 1.0f) * w_max;
    }
    return min_of<float>(w + p[F_RATE_PLUS] * raised(w, p[F_MU_PLUS]) * k, w_max);
}

__device__ inline float depressed(int kind, float w, float k, const float *p)
{
    if (kind == STDP_BOUNDED) {
        float w_max = p[F_W_MAX], x = w / w_max;
        x = x - p[F_RATE_MINUS] * raised(x, p[F_MU_MINUS]) * k;
        return max_of<float>(x, 0.0f) * w_max;
    }
    return max_of<float>(w - p[F_RATE_MINUS] * w * k, 0.0f);
}

struct Notes {  // of a target's spikes
    int count, oldest;
    u32 mask;
    const int *steps;
    const float *traces;
};

__device__ inline Notes notes_of(const Plastic &table, i64 place)
{
    i64 capacity = table.row[T_CAPACITY];
    Notes notes;
    notes.count = ((const int *)table.row[T_POST_COUNT])[place];
    notes.oldest = max_of<int>(0, notes.count - (int)capacity);
    notes.mask = (u32)capacity - 1;
    notes.steps = (const int *)table.row[T_POST_STEPS] + place * capacity;
    notes.traces = (const float *)table.row[T_POST_TRACES] + place * capacity;
    return notes;
}

__device__ inline int spikes_that_arrived(const Notes &notes, int delay, int until)
{
    int m = notes.count;
    while (m > notes.oldest && notes.steps[(u32)(m - 1) & notes.mask] + delay > until)
        m--;
    return m;
}

__device__ inline float after_post_spikes(const Plastic &table, float value, const Notes &notes, int m, int delay, int after, int last, float trace)
{
    int first = m;
    while (first > notes.oldest && notes.steps[(u32)(first - 1) & notes.mask] + delay > after)
        first--;
    for (int i = first; i < m; i++) {
        float then = decayed(trace, (const float *)table.row[T_DECAY_PLUS], notes.steps[(u32)i & notes.mask] + delay - last);
        if (table.kind == REWARD)
            value = value + table.p[F_RATE_PLUS] * then;
        else
            value = facilitated(table.kind, value, then, table.p);
    }
    return value;
}

__device__ inline float post_trace(const Plastic &table, const Notes &notes, int m, int before)
{
    if (m > notes.oldest && notes.steps[(u32)(m - 1) & notes.mask] >= before)
        m--;
    if (m <= notes.oldest)
        return 0.0f;
    u32 at = (u32)(m - 1) & notes.mask;
    return decayed(notes.traces[at], (const float *)table.row[T_DECAY_MINUS], before - notes.steps[at]);
}

// A spike of `source` arrives at the targets of one delay class: one warp.
SELDOM u32 deliver_plastic_segment(i64 which, u32 source, u32 c, int now)
{
    HERE;
    const Plastic table = plastic_table(which);
    u32 lane = threadIdx.x % WARP, s = source * (u32)table.classes + c;
    u32 start = table.index[s], end = table.index[s + 1];
    int delay = delay_of_class(table, c), emitted = now - delay;
    int *slot = here.ring + ((u32)now & ((u32)PLAN[P_SLOTS] - 1)) * (u32)PLAN[P_ACCUMULATORS] + (u32)(table.row[T_RECEPTOR] * PLAN[P_CELLS]);
    float inverse_lsb = table.p[F_INVERSE_LSB];
    const float *decay_plus = (const float *)table.row[T_DECAY_PLUS];
    if (table.kind == PLAIN || table.kind == SHORT_TERM) {
        if (table.kind == SHORT_TERM) {  // the share of the weight that is transmitted (Tsodyks and Markram)
            int last = table.last[s];
            float u = table.trace[s], x = table.resource[s], given = table.p[F_U];
            if (last > 0) {
                float recovery = decayed(1.0f, decay_plus, emitted - last);
                float facilitation = decayed(1.0f, (const float *)table.row[T_DECAY_FACILITATION], emitted - last);
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
    bool frozen = table.row[T_FROZEN] != 0;
    for (u32 j = start + lane; j < end; j += WARP) {
        u32 cell = table.cells[j];
        float weight = table.weights[j];
        if (!frozen) {
            const Notes notes = notes_of(table, place_of(table, cell));
            float value = table.kind == REWARD ? table.eligibilities[j] : weight;
            int m = spikes_that_arrived(notes, delay, emitted);
            value = after_post_spikes(table, value, notes, m, delay, after, last, trace);
            float post = post_trace(table, notes, m, emitted - delay);
            if (table.kind == REWARD)
                table.eligibilities[j] = value - table.p[F_RATE_MINUS] * post;
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

// Who tells of spikes: every block, and the outside.
#define TELLERS ((u32)PLAN[P_BLOCKS] + OUTSIDE_SPIKES)

// The spikes of one step that a table hears of from a block, in its mail, or from outside, where they are listed step by
// step: calls `found(source)` for each.
template <typename Found> __device__ inline void heard_by(const i64 *row, int step, u32 other, Found found)
{
    if (OUTSIDE_SPIKES && other == (u32)PLAN[P_BLOCKS]) {
        i64 at = step - PLAN[P_PAST_FIRST];
        if (row[T_PRE_OUTSIDE] < 0 || at < 0 || at >= PLAN[P_PAST_STEPS])
            return;
        const i64 *starts = (const i64 *)PLAN[P_PAST_STARTS] + at;
        for (i64 i = starts[0]; i < starts[1]; i++) {
            i64 source = (i64)((const u32 *)PLAN[P_PAST])[i] - row[T_PRE_OUTSIDE];
            if (source >= 0 && source < row[T_PRE_ALL])
                found((u32)source);
        }
        return;
    }
    u64 low, high;
    read_line((const u64 *)PLAN[P_MAIL] + 2 * line_of(step, other), low, high);
    u32 count = (u32)(low >> 32) & (STOP_FLAG - 1);
    for (u32 k = 0; k < count; k++) {
        i64 q = (i64)who(low, high, count, k, step, other) * PLAN[P_BLOCKS] + other - row[T_PRE_PLACE];
        if (q >= 0 && q < row[T_PRE_N])
            found((u32)(q + row[T_PRE_FIRST]));
    }
}

// Deliver what arrives in step t at plastic synapses.
SELDOM u64 deliver_plastic(int t)
{
    HERE;
    Desk *desk = here.desk;
    u32 warp = threadIdx.x / WARP, tellers = TELLERS;
    u64 events = 0;
    for (i64 i = 0; i < PLAN[P_PLASTIC_COUNT]; i++) {
        const i64 *row = (const i64 *)PLAN[P_PLASTICS] + i * T_WORDS;
        u32 looks = (u32)row[T_CLASSES] * tellers;
        for (u32 look = threadIdx.x; look < looks; look += THREADS) {
            u32 c = look / tellers;
            int step = t - (int)((const i64 *)row[T_DELAYS])[c];
            if (step >= 1)
                heard_by(row, step, look % tellers, [&](u32 source) {
                    int at = atomicAdd(&desk->arriving, 1);
                    if (at < LIST)
                        here.arriving[at] = (u64)i << 48 | (u64)c << 32 | source;
                });
        }
    }
    __syncthreads();
    int arriving = desk->arriving;
    for (int i = (int)warp; i < arriving && arriving <= LIST; i += WARPS) {
        u64 one = here.arriving[i];
        u32 size = deliver_plastic_segment((i64)(one >> 48), (u32)one, (u32)(one >> 32) & 0xFFFF, t);
        events += threadIdx.x % WARP == 0 ? size : 0;
    }
    if (arriving > LIST) {  // more than the list holds: every warp looks at all of them, and takes its share
        u32 taken = 0;
        for (i64 i = 0; i < PLAN[P_PLASTIC_COUNT]; i++) {
            const i64 *row = (const i64 *)PLAN[P_PLASTICS] + i * T_WORDS;
            for (u32 c = 0; c < (u32)row[T_CLASSES]; c++) {
                int step = t - (int)((const i64 *)row[T_DELAYS])[c];
                for (u32 other = 0; step >= 1 && other < tellers; other++)
                    heard_by(row, step, other, [&](u32 source) {
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
        desk->arriving = 0;
    return events;
}

// Whether a target with n spikes so far must not spike SLACK + 2 times more before its notes are flushed or get more room:
// so many it may, until all blocks have heard that one of them wants to stop.
#define SLACK (LAG + 4)

__device__ inline bool has_no_room(const i64 *row, int n, const int *steps)
{
    int capacity = (int)row[T_CAPACITY], newest = n + 2 + SLACK;
    if (newest - 2 < capacity - 1)
        return false;
    i64 longest = ((const i64 *)row[T_DELAYS])[row[T_CLASSES] - 1];
    i64 second = newest >= capacity ? steps[(u32)newest & (u32)(capacity - 1)] : 0;
    return second + 2 * longest > ((const i64 *)row[T_FLUSHED])[blockIdx.x];
}

// A neuron of the post population (its place there) spikes in this step.
SELDOM void note_post_spike(i64 i, i64 place, int step)
{
    const i64 *row = (const i64 *)PLAN[P_PLASTICS] + i * T_WORDS;
    if (row[T_SCALE_EVERY] > 0)
        ((int *)row[T_SCALE_COUNT])[place]++;
    if (row[T_KIND] == PLAIN || row[T_KIND] == SHORT_TERM)
        return;
    i64 capacity = row[T_CAPACITY];
    int *steps = (int *)row[T_POST_STEPS] + place * capacity;
    float *traces = (float *)row[T_POST_TRACES] + place * capacity;
    int n = ((int *)row[T_POST_COUNT])[place];
    float trace = 1.0f;
    if (n > 0) {
        u32 before = (u32)(n - 1) & (u32)(capacity - 1);
        trace = decayed(traces[before], (const float *)row[T_DECAY_MINUS], step - steps[before]) + 1.0f;
    }
    steps[(u32)n & (u32)(capacity - 1)] = step;
    traces[(u32)n & (u32)(capacity - 1)] = trace;
    ((int *)row[T_POST_COUNT])[place] = n + 1;
    if (has_no_room(row, n + 1, steps))
        ((volatile int *)PLAN[P_FULL])[blockIdx.x] = 1;
}

__device__ inline bool wants_room() { return ((volatile const int *)PLAN[P_FULL])[blockIdx.x] != 0; }

// Apply to the block's synapses of a table every target spike that can be applied after step `now`; whole block.
SELDOM void flush_table(i64 i, int now)
{
    const Plastic table = plastic_table(i);
    if (threadIdx.x == 0)
        ((i64 *)table.row[T_FLUSHED])[blockIdx.x] = now;
    if (table.kind == PLAIN || table.kind == SHORT_TERM)
        return;
    for (u32 s = threadIdx.x / WARP; s < table.segments; s += blockDim.x / WARP) {
        int delay = delay_of_class(table, s % (u32)table.classes), until = now - delay, after = table.applied[s];
        if (until <= after)
            continue;
        float trace = table.trace[s];
        if (trace > 0.0f && !table.row[T_FROZEN]) {
            for (u32 j = table.index[s] + threadIdx.x % WARP; j < table.index[s + 1]; j += WARP) {
                const Notes notes = notes_of(table, place_of(table, table.cells[j]));
                // Most targets have not spiked since the last time. (One that never did has a note of step 0.)
                if (notes.steps[(u32)(notes.count - 1) & notes.mask] <= after - delay)
                    continue;
                float value = table.kind == REWARD ? table.eligibilities[j] : table.weights[j];
                int m = spikes_that_arrived(notes, delay, until);
                value = after_post_spikes(table, value, notes, m, delay, after, table.last[s], trace);
                (table.kind == REWARD ? table.eligibilities : table.weights)[j] = value;
            }
        }
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            table.applied[s] = until;
    }
}

// What changes all weights of a table at set times; whole block.
SELDOM void learn_now(i64 i, int t, bool rewarded, bool scaled)
{
    HERE;
    const Plastic table = plastic_table(i);
    const float *p = table.p;
    u32 synapses = table.index[table.segments];
    bool frozen = table.row[T_FROZEN] != 0;
    flush_table(i, t);
    __syncthreads();
    if (rewarded) {
        i64 place = table.row[T_LEVEL];
        float level = place < PLAN[P_MODULATORS] ? here.levels[place] : here.signals[place];
        float low = p[F_W_MIN], high = p[F_W_MAX], decay = p[F_ELIGIBILITY_DECAY], forget = p[F_FORGET];
        if (frozen)
            level = 0.0f, forget = 1.0f;
        for (u32 j = threadIdx.x; j < synapses; j += THREADS) {
            float weight = table.weights[j], eligibility = table.eligibilities[j];
            if (forget < 1.0f)
                weight = low + (weight - low) * forget;
            table.weights[j] = min_of<float>(max_of<float>(weight + level * eligibility, low), high);
            float left = eligibility * decay;
            table.eligibilities[j] = fabsf(left) < bits_to_f(SMALLEST_KEPT) ? 0.0f : left;
        }
        __syncthreads();
    }
    if (scaled) {
        int *count = (int *)table.row[T_SCALE_COUNT];
        float strength = p[F_SCALE_STRENGTH], wanted = p[F_SCALE_TARGET];
        for (u32 j = threadIdx.x; j < synapses && !frozen; j += THREADS) {
            float spikes = (float)count[place_of(table, table.cells[j])];
            float factor = 1.0f + strength * ((wanted - spikes) / wanted);
            table.weights[j] = min_of<float>(max_of<float>(table.weights[j] * factor, p[F_SCALE_W_MIN]), p[F_SCALE_W_MAX]);
        }
        __syncthreads();
        for (u32 cell = threadIdx.x; cell < (u32)PLAN[P_CELLS]; cell += THREADS) {
            i64 place = place_of(table, cell);
            if (place >= 0 && place < table.row[T_POST_N])
                count[place] = 0;
        }
        __syncthreads();
    }
}

// After the block's spikes of step t were noted.
__device__ inline void learn(int t)
{
    __syncthreads();
    for (i64 i = 0; i < PLAN[P_PLASTIC_COUNT]; i++) {
        const i64 *row = (const i64 *)PLAN[P_PLASTICS] + i * T_WORDS;
        bool rewarded = row[T_EVERY] > 0 && t % (int)row[T_EVERY] == 0;
        bool scaled = row[T_SCALE_EVERY] > 0 && t % (int)row[T_SCALE_EVERY] == 0;
        if (rewarded || scaled)
            learn_now(i, t, rewarded, scaled);
    }
}

// Bring all plastic weights up to date, and see which histories of target spikes have room.
extern "C" __global__ void __launch_bounds__(THREADS, 1) flush_plastic(i64 now)
{
    for (i64 i = 0; i < PLAN[P_PLASTIC_COUNT]; i++)
        flush_table(i, (int)now);
    __syncthreads();
    if (threadIdx.x == 0)
        ((int *)PLAN[P_FULL])[blockIdx.x] = 0;
    __syncthreads();
    for (i64 i = 0; i < PLAN[P_PLASTIC_COUNT]; i++) {
        const i64 *row = (const i64 *)PLAN[P_PLASTICS] + i * T_WORDS;
        if (row[T_KIND] == PLAIN || row[T_KIND] == SHORT_TERM)
            continue;
        for (i64 cell = threadIdx.x; cell < PLAN[P_CELLS]; cell += blockDim.x) {
            i64 place = cell * PLAN[P_BLOCKS] + blockIdx.x - row[T_POST_PLACE];
            if (place >= 0 && place < row[T_POST_N] &&
                has_no_room(row, ((const int *)row[T_POST_COUNT])[place], (const int *)row[T_POST_STEPS] + place * row[T_CAPACITY]))
                ((volatile int *)PLAN[P_FULL])[blockIdx.x] = 1;
        }
    }
}
