// Layout of static synapses. A segment holds the synapses of one source onto the neurons of one block of the grid. Its record
// holds the address of its words and the first INLINE of them; words with the shortest delay come first (URGENT). Where records
// would take much more memory than the synapses, an index holds the starts of the segments instead (COMPACT).

#if WIDE
typedef u64 Word;
#else
typedef u32 Word;
#endif

struct alignas(16) Head {
    u32 size;
    u32 shift;
    u32 start;  // of the words that are not in the record, within the words of the block
    u32 urgent;
};

struct Record {
    Head head;
#if INLINE
    Word words[INLINE];
#endif
};

// Pack weight, steps beyond the shortest delay, and target.
__device__ inline Word packed(int weight, u32 target, u32 later)
{
    u32 low = (u32)((u64)later << TARGET_BITS) | target;
#if WIDE
    return (u64)(u32)weight << 32 | low;
#else
    return (u32)weight << 16 | low;
#endif
}

__device__ inline u32 low_of(Word word) { return (u32)word & (WIDE ? 0xFFFFFFFFu : 0xFFFFu); }
__device__ inline u32 later_of(Word word) { return (u32)((u64)low_of(word) >> TARGET_BITS); }
__device__ inline u32 target_of(Word word) { return low_of(word) & (u32)(((u64)1 << TARGET_BITS) - 1); }
