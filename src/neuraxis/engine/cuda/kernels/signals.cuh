// What follows from the step alone, or from counts of spikes, and what is sampled.

#if SIGNALS
// Levels of neuromodulators and values of rhythms, and the constants that are tied to them.
SELDOM void update_signals(int t)
{
    HERE;
    i64 modulators = PLAN[P_MODULATORS];
    const i64 *rows = (const i64 *)PLAN[P_MODULATOR_ROWS], *releases = (const i64 *)PLAN[P_RELEASES];
    for (i64 m = 0; m < modulators; m++) {
        const i64 *row = rows + m * M_WORDS;
        if (row[M_HEARD]) {
            float value = here.levels[m] * bits_to_f((u32)row[M_DECAY]);
            for (i64 r = row[M_FIRST]; r < row[M_END]; r++) {
                i64 step = t - releases[r * R_WORDS + R_DELAY];
                if (step < 1)
                    continue;
                i64 slot = (i64)blockIdx.x * PLAN[P_COUNT_SLOTS] + (step & (PLAN[P_COUNT_SLOTS] - 1));
                const int *counts = (const int *)PLAN[P_POPULATION_COUNTS] + slot * PLAN[P_POPULATIONS];
                int count = *(volatile const int *)(counts + releases[r * R_WORDS + R_POPULATION]);
                value = value + bits_to_f((u32)releases[r * R_WORDS + R_AMOUNT]) * (float)count;
            }
            here.levels[m] = value;
        }
        here.signals[m] = bits_to_f((u32)row[M_BASELINE]) + here.levels[m];
    }
    const i64 *rhythms = (const i64 *)PLAN[P_RHYTHMS];
    for (i64 r = 0; r < PLAN[P_RHYTHM_COUNT]; r++) {
        const i64 *row = rhythms + r * Y_WORDS;
        u64 phase = (u64)t * (u64)row[Y_INCREMENT] + (u64)row[Y_OFFSET];
        float cosine = ((const float *)PLAN[P_COSINES])[phase >> (64 - PLAN[P_CELL_BITS])];
        here.signals[modulators + r] = max_of<float>(cosine, bits_to_f((u32)row[Y_FLOOR]));
    }
    const i64 *ties = (const i64 *)PLAN[P_TIES];
    for (i64 i = 0; i < PLAN[P_TIE_COUNT]; i++)
        here.constants[ties[2 * i]] = here.signals[ties[2 * i + 1]];
}
#endif

#if COUNTS_POPULATIONS
// The counts of the step after t start at nothing.
__device__ inline void clear_counts(int t)
{
    i64 slot = (i64)blockIdx.x * PLAN[P_COUNT_SLOTS] + ((t + 1) & (PLAN[P_COUNT_SLOTS] - 1));
    for (i64 i = threadIdx.x; i < PLAN[P_POPULATIONS]; i += THREADS)
        ((int *)PLAN[P_POPULATION_COUNTS])[slot * PLAN[P_POPULATIONS] + i] = 0;
}
#endif

// Mark the neurons that are told to spike in step t.
SELDOM void force(int t)
{
    HERE;
    Desk *desk = here.desk;
    const u64 *inputs = (const u64 *)PLAN[P_INPUTS];
    i64 words = (PLAN[P_CELLS] + 31) / 32;
    u32 *forced = here.forced + (t & 1) * words;
    for (i64 i = 0; i < words && desk->forced[t & 1]; i++)
        forced[i] = 0;
    desk->forced[t & 1] = 0;
    while (desk->input < desk->input_end && (i64)(inputs[desk->input] >> 32) <= t) {
        u32 cell = (u32)inputs[desk->input];
        if ((i64)(inputs[desk->input] >> 32) == t) {
            forced[cell / 32] |= 1u << (cell % 32);
            desk->forced[t & 1] = 1;
        }
        desk->input++;
    }
}

SELDOM bool samples_due(int t)
{
    for (i64 i = 0; i < PLAN[P_PROBE_COUNT]; i++)
        if (t % ((const i64 *)PLAN[P_PROBES] + i * B_WORDS)[B_EVERY] == 0)
            return true;
    return false;
}

// Write the states that probes want in step t, from where `store` put them.
SELDOM void sample(int t)
{
    HERE;
    Desk *desk = here.desk;
    i64 at = desk->sampled;
    for (i64 i = 0; i < PLAN[P_PROBE_COUNT]; i++) {
        const i64 *probe = (const i64 *)PLAN[P_PROBES] + i * B_WORDS;
        if (t % probe[B_EVERY])
            continue;
        const i64 *starts = (const i64 *)probe[B_STARTS];
        const i64 *cells = (const i64 *)probe[B_CELLS];  // cell | place among the probe's << 32
        const u32 *row = (const u32 *)PLAN[P_STATES] + probe[B_ROW] * PLAN[P_BLOCKS] * PLAN[P_CELLS];
        for (i64 k = starts[blockIdx.x] + threadIdx.x; k < starts[blockIdx.x + 1]; k += THREADS)
            ((u32 *)PLAN[P_SAMPLES])[at + (cells[k] >> 32)] =
                *(volatile const u32 *)(row + (i64)blockIdx.x * PLAN[P_CELLS] + (u32)cells[k]);
        at += probe[B_COUNT];
    }
    __syncthreads();
    if (threadIdx.x == 0)
        desk->sampled = at;
}
