// Static synapses as the kernels find them. A segment is the synapses of one source onto the neurons of one block of the grid.
// Its record holds where its words are, and the first INLINE of them; those that are felt soonest (URGENT) come first.

#if WIDE
typedef u64 Word;
#else
typedef u32 Word;
#endif

struct alignas(16) Head {
    u32 size;
    u32 shift;
    u32 start;  // of the words that are not in the record, within the block's
    u32 urgent;
};

struct Record {
    Head head;
#if INLINE
    Word words[INLINE];
#endif
};

// Weight, delay (less the one that every delay has) and target.
__device__ inline Word packed(int weight, u32 target, u32 delay)
{
    u32 low = (delay - 1) << TARGET_BITS | target;
#if WIDE
    return (u64)(u32)weight << 32 | low;
#else
    return (u32)weight << 16 | low;
#endif
}

__device__ inline u32 low_of(Word word) { return (u32)word & (WIDE ? 0xFFFFFFFFu : 0xFFFFu); }
__device__ inline u32 delay_of(Word word) { return (u32)((u64)low_of(word) >> TARGET_BITS) + 1; }
__device__ inline u32 target_of(Word word) { return low_of(word) & (u32)(((u64)1 << TARGET_BITS) - 1); }
