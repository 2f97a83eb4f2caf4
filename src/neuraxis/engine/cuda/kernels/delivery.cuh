// Delivery of spikes into the ring buffer of the block that owns the targets.

#define ENTRIES_AT_ONCE 4

__device__ inline u32 delay_of(Word word) { return (u32)layout.first_delay + later_of(word); }

__device__ inline int weight_of(Word word, u32 shift)
{
#if WIDE
    return (int)(word >> 32);
#else
    return ((int)word >> 16) << shift;
#endif
}

__device__ inline void deliver_synapse(int *ring, Word word, u32 shift, u32 emitted)
{
    u32 slot = ONE_SLOT ? 0 : ((emitted + delay_of(word)) & ((u32)layout.slots - 1)) * (u32)layout.accumulators;
    atomicAdd(ring + slot + target_of(word), weight_of(word, shift));
}

// The sums of the weights that arrive in step t.
__device__ inline int *arriving_in(const Block &here, int t)
{
    return QUEUED ? here.sums : here.ring + ((u32)t & ((u32)layout.slots - 1)) * (u32)layout.accumulators;
}

// Where the ring is too large for the caches, adding weights to random places of it is slow. Then each of its slots has a queue
// of weights and targets (QUEUED), which is added to sums in shared memory in the step in which they arrive. What does not fit
// a queue is added to the ring; between launches the ring has all weights.
#if QUEUED
__device__ inline void queue_synapse(const Block &here, Word word, u32 shift, u32 emitted)
{
    const u32 slot = (emitted + delay_of(word)) & ((u32)layout.slots - 1), at = atomicAdd(here.queued + slot, 1u);
    if (at < (u32)layout.queue_room)
        here.queues[(i64)slot * layout.queue_room + at] = (u64)(u32)weight_of(word, shift) << 32 | target_of(word);
    else
        deliver_synapse(here.ring, word, shift, emitted);
}

__device__ inline void add_queue(const Block &here, u32 slot, int *sums)
{
    const u32 n = min_of<u32>(here.queued[slot], (u32)layout.queue_room);
    const u64 *queue = here.queues + (i64)slot * layout.queue_room;
    for (u32 k = threadIdx.x; k < n; k += ENTRIES_AT_ONCE * THREADS) {
        u64 some[ENTRIES_AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < ENTRIES_AT_ONCE; i++)
            some[i] = k + i * THREADS < n ? queue[k + i * THREADS] : 0;
#pragma unroll
        for (u32 i = 0; i < ENTRIES_AT_ONCE; i++)
            if (k + i * THREADS < n)
                atomicAdd(sums + (u32)some[i], (int)(some[i] >> 32));
    }
}

// Sum the weights that arrive in step t. The first steps of a launch find those of earlier launches in the ring.
__device__ inline void empty_queue(const Block &here, int t, int after)
{
    const u32 slot = (u32)t & ((u32)layout.slots - 1);
    if (threadIdx.x == 0)
        here.control->from_ring = here.queued[slot] > (u32)layout.queue_room || t <= after + (int)layout.slots;
    add_queue(here, slot, here.sums);
    __syncthreads();
    if (threadIdx.x == 0)
        here.queued[slot] = 0;
}

// Add all queues to the ring.
COLD void return_queues()
{
    LOCATE_BLOCK;
    for (u32 slot = 0; slot < (u32)layout.slots; slot++)
        add_queue(here, slot, here.ring + slot * (u32)layout.accumulators);
}
#else
__device__ inline void queue_synapse(const Block &here, Word word, u32 shift, u32 emitted)
{
    deliver_synapse(here.ring, word, shift, emitted);
}
#endif

__device__ inline u32 row_of(u32 entry) { return entry & ((1u << ROW_BITS) - 1); }

#if COMPACT
struct Span {  // a segment, as places among the words of the block
    u32 first, end, shift;
};

__device__ inline Span span_of(u32 row)
{
    const u32 *index = layout.index + (i64)blockIdx.x * (layout.rows + 1) + row;
    return Span{read_only(index), read_only(index + 1), SHIFTED ? (u32)read_only(layout.shifts + row) : 0};
}

// Deliver the words of a segment from place `first` on with SEGMENT_LANES lanes.
__device__ inline void deliver_span(const Block &here, const Word *words, u32 first, Span span, u32 emitted)
{
    for (u32 k = first; k < span.end; k += WORDS_AT_ONCE * SEGMENT_LANES) {
        Word some[WORDS_AT_ONCE];
#pragma unroll
        for (u32 w = 0; w < WORDS_AT_ONCE; w++)
            some[w] = k + w * SEGMENT_LANES < span.end ? read_only(words + k + w * SEGMENT_LANES) : 0;
#pragma unroll
        for (u32 w = 0; w < WORDS_AT_ONCE; w++)
            if (k + w * SEGMENT_LANES < span.end)
                queue_synapse(here, some[w], span.shift, emitted);
    }
}

// Deliver a segment with SEGMENT_LANES lanes.
__device__ inline u32 deliver_by_few(const Block &here, u32 entry, u32 emitted)
{
    Span span = span_of(row_of(entry));
    deliver_span(here, layout.words[blockIdx.x], span.first + threadIdx.x % SEGMENT_LANES, span, emitted);
    return span.end - span.first;
}

// Deliver the spikes of a list. SEGMENT_LANES lanes handle some of their segments at once, so that many loads are in flight.
__device__ inline u64 deliver_listed(const Block &here, const u32 *list, u32 n, int t)
{
    const u32 lane = threadIdx.x % SEGMENT_LANES, groups = THREADS / SEGMENT_LANES;
    const Word *words = layout.words[blockIdx.x];
    u64 events = 0;
    for (u32 i = threadIdx.x / SEGMENT_LANES; i < n; i += SEGMENTS_AT_ONCE * groups) {
        Span spans[SEGMENTS_AT_ONCE];
        u32 emitted[SEGMENTS_AT_ONCE];
        Word some[SEGMENTS_AT_ONCE][WORDS_AT_ONCE];
#pragma unroll
        for (u32 s = 0; s < SEGMENTS_AT_ONCE; s++) {
            spans[s] = Span{0, 0, 0};
            emitted[s] = 0;
            if (i + s * groups < n) {
                u32 entry = list[i + s * groups];
                spans[s] = span_of(row_of(entry));
                emitted[s] = (u32)t - (entry >> ROW_BITS);
            }
        }
#pragma unroll
        for (u32 s = 0; s < SEGMENTS_AT_ONCE; s++)
#pragma unroll
            for (u32 w = 0; w < WORDS_AT_ONCE; w++) {
                u32 k = spans[s].first + lane + w * SEGMENT_LANES;
                some[s][w] = k < spans[s].end ? read_only(words + k) : 0;
            }
#pragma unroll
        for (u32 s = 0; s < SEGMENTS_AT_ONCE; s++) {
            u32 k = spans[s].first + lane;
            events += lane == 0 ? spans[s].end - spans[s].first : 0;
#pragma unroll
            for (u32 w = 0; w < WORDS_AT_ONCE; w++)
                if (k + w * SEGMENT_LANES < spans[s].end)
                    queue_synapse(here, some[s][w], spans[s].shift, emitted[s]);
            deliver_span(here, words, k + WORDS_AT_ONCE * SEGMENT_LANES, spans[s], emitted[s]);
        }
    }
    return events;
}
#else
__device__ inline const Record *record_of(u32 row) { return layout.records + ((i64)blockIdx.x * layout.rows + row); }

__device__ inline const Word *words_of(Head head) { return layout.words[blockIdx.x] + head.start; }

// The k-th word of a segment; `words` points to those that are not in the record.
__device__ inline Word word_at(const Record *record, const Word *words, u32 k)
{
#if INLINE
    return k < INLINE ? record->words[k] : words[k - INLINE];
#else
    return words[k];
#endif
}

// Deliver the synapses `from` to `to` (exclusive) of a segment with one warp.
__device__ inline void deliver(int *ring, const Record *record, Head head, u32 from, u32 to, u32 emitted)
{
    const Word *words = words_of(head);
#pragma unroll 1
    for (u32 k = from + threadIdx.x % WARP; k < to; k += WARP)
        deliver_synapse(ring, word_at(record, words, k), head.shift, emitted);
}

// Deliver a segment with SEGMENT_LANES lanes, so that a warp handles several short segments at once.
__device__ inline u32 deliver_by_few(const Block &here, u32 entry, u32 emitted)
{
    const Record *record = record_of(row_of(entry));
    Head head = record->head;
    const Word *words = words_of(head);
#pragma unroll 4
    for (u32 k = threadIdx.x % SEGMENT_LANES; k < head.size; k += SEGMENT_LANES)
        deliver_synapse(here.ring, word_at(record, words, k), head.shift, emitted);
    return head.size;
}

#if URGENT
// Deliver the synapses that take effect in step t itself.
__device__ inline void deliver_urgent(int *ring, u32 entry, int t)
{
    const Record *record = record_of(row_of(entry));
    u32 lane = threadIdx.x % WARP;
    const u32 first = INLINE < WARP ? INLINE : WARP;
    Word word = record->words[lane < first ? lane : 0];  // loaded together with the head
    Head head = record->head;
    u32 emitted = (u32)t - (entry >> ROW_BITS);
    if (lane < head.urgent && lane < first)
        deliver_synapse(ring, word, head.shift, emitted);
    if (head.urgent > first)
        deliver(ring, record, head, first, head.urgent, emitted);
}
#endif

__device__ inline u32 deliver_rest(int *ring, u32 entry, int t)
{
    const Record *record = record_of(row_of(entry));
    Head head = record->head;
    deliver(ring, record, head, URGENT ? head.urgent : 0, head.size, (u32)t - (entry >> ROW_BITS));
    return head.size;
}

#if PREFETCHED
// Records are copied to shared memory asynchronously while neurons are updated, and delivered afterwards. (The compiler would
// wait for a load into registers much too early.)
__device__ inline void prefetch_record(Record *stage, u32 entry)
{
    const char *from = (const char *)record_of(row_of(entry));
    for (u32 i = threadIdx.x % WARP; i < sizeof(Record) / 16; i += WARP)
        copy_async((char *)stage + 16 * i, from + 16 * i);
}

__device__ inline u32 deliver_prefetched(int *ring, const Record *stage, u32 entry, int t)
{
    Head head = stage->head;
    u32 emitted = (u32)t - (entry >> ROW_BITS), inlined = head.size < INLINE ? head.size : INLINE;
    for (u32 k = threadIdx.x % WARP; k < inlined; k += WARP)
        deliver_synapse(ring, stage->words[k], head.shift, emitted);
    if (head.size > INLINE)
        deliver(ring, record_of(row_of(entry)), head, INLINE, head.size, emitted);
    return head.size;
}
#endif
#endif
