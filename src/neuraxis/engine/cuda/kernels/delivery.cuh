// Delivery of spikes into the ring buffer of the block that owns the targets.

__device__ inline void deliver_synapse(int *ring, Word word, u32 shift, u32 emitted)
{
#if WIDE
    int weight = (int)(word >> 32);
#else
    int weight = ((int)word >> 16) << shift;
#endif
    u32 slot = (emitted + delay_of(word)) & ((u32)layout.slots - 1);
    atomicAdd(ring + slot * (u32)layout.accumulators + target_of(word), weight);
}

__device__ inline const Record *record_of(u32 entry)
{
    return layout.records + ((i64)blockIdx.x * layout.rows + (entry & ((1u << ROW_BITS) - 1)));
}

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
__device__ inline u32 deliver_by_few(int *ring, u32 entry, u32 emitted)
{
    const Record *record = record_of(entry);
    Head head = record->head;
    const Word *words = words_of(head);
#pragma unroll 4
    for (u32 k = threadIdx.x % SEGMENT_LANES; k < head.size; k += SEGMENT_LANES)
        deliver_synapse(ring, word_at(record, words, k), head.shift, emitted);
    return head.size;
}

#if URGENT
// Deliver the synapses that take effect in step t itself.
__device__ inline void deliver_urgent(int *ring, u32 entry, int t)
{
    const Record *record = record_of(entry);
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
    const Record *record = record_of(entry);
    Head head = record->head;
    deliver(ring, record, head, URGENT ? head.urgent : 0, head.size, (u32)t - (entry >> ROW_BITS));
    return head.size;
}

#if PREFETCHED
// Records are copied to shared memory asynchronously while neurons are updated, and delivered afterwards. (The compiler would
// wait for a load into registers much too early.)
__device__ inline void prefetch_record(Record *stage, u32 entry)
{
    const char *from = (const char *)record_of(entry);
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
        deliver(ring, record_of(entry), head, INLINE, head.size, emitted);
    return head.size;
}
#endif
