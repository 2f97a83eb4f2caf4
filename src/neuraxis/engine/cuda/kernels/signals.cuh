// Neuromodulators, rhythms, forced spikes and samples of states.

#if SIGNALS
// Update levels of neuromodulators and values of rhythms, and the constants of models that are bound to them.
COLD void update_signals(int t)
{
    LOCATE_BLOCK;
    i64 modulators = layout.modulators;
    const Release *releases = layout.releases;
    for (i64 m = 0; m < modulators; m++) {
        const Modulator *row = layout.modulator_rows + m;
        if (row->tracked) {
            float value = here.levels[m] * bits_to_f((u32)row->decay);
            for (i64 r = row->first; r < row->end; r++) {
                i64 step = t - releases[r].delay;
                if (step < 1)
                    continue;
                i64 slot = (i64)blockIdx.x * layout.count_slots + (step & (layout.count_slots - 1));
                const int *counts = layout.population_counts + slot * layout.populations;
                int count = *(volatile const int *)(counts + releases[r].population);
                value = value + bits_to_f((u32)releases[r].amount) * (float)count;
            }
            here.levels[m] = value;
        }
        here.signals[m] = bits_to_f((u32)row->baseline) + here.levels[m];
    }
    for (i64 r = 0; r < layout.rhythm_count; r++) {
        const Rhythm *row = layout.rhythms + r;
        u64 phase = (u64)t * row->increment + row->offset;
        float cosine = layout.cosines[phase >> (64 - layout.cell_bits)];
        here.signals[modulators + r] = max_of<float>(cosine, bits_to_f((u32)row->floor));
    }
    for (i64 i = 0; i < layout.binding_count; i++)
        here.constants[layout.bindings[i].constant] = here.signals[layout.bindings[i].signal];
}
#endif

#if COUNTS_POPULATIONS
// Set the counts of the step after t to 0.
__device__ inline void clear_counts(int t)
{
    i64 slot = (i64)blockIdx.x * layout.count_slots + ((t + 1) & (layout.count_slots - 1));
    for (i64 i = threadIdx.x; i < layout.populations; i += THREADS)
        layout.population_counts[slot * layout.populations + i] = 0;
}
#endif

// Mark the neurons that must spike in step t.
COLD void force(int t)
{
    LOCATE_BLOCK;
    Control *control = here.control;
    const u64 *inputs = layout.inputs;
    i64 words = (layout.cells + 31) / 32;
    u32 *forced = here.forced + (t & 1) * words;
    for (i64 i = 0; i < words && control->forced[t & 1]; i++)
        forced[i] = 0;
    control->forced[t & 1] = 0;
    while (control->input < control->input_end && (i64)(inputs[control->input] >> 32) <= t) {
        u32 cell = (u32)inputs[control->input];
        if ((i64)(inputs[control->input] >> 32) == t) {
            forced[cell / 32] |= 1u << (cell % 32);
            control->forced[t & 1] = 1;
        }
        control->input++;
    }
}

COLD bool samples_due(int t)
{
    for (i64 i = 0; i < layout.probe_count; i++)
        if (t % layout.probes[i].every == 0)
            return true;
    return false;
}

// Write the samples of step t from the states that `store` wrote.
COLD void sample(int t)
{
    LOCATE_BLOCK;
    Control *control = here.control;
    i64 at = control->sampled;
    for (i64 i = 0; i < layout.probe_count; i++) {
        const StateProbe *probe = layout.probes + i;
        if (t % probe->every)
            continue;
        const i64 *starts = probe->starts;
        const i64 *cells = probe->cells;
        const u32 *row = layout.states + probe->row * layout.blocks * layout.cells;
        for (i64 k = starts[blockIdx.x] + threadIdx.x; k < starts[blockIdx.x + 1]; k += THREADS)
            layout.samples[at + (cells[k] >> 32)] =
                *(volatile const u32 *)(row + (i64)blockIdx.x * layout.cells + (u32)cells[k]);
        at += probe->count;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        control->sampled = at;
}
