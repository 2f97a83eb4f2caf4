// Continuous connections: a ring of the outputs of the last steps, and their weighted sums.
//
// Each block writes the outputs of its neurons to the ring before its message of the step. The update to step t reads those of
// step t - 2 and earlier (engine/cpu/rates.py), and LAG is such that the message of that step has been collected. The ring has
// LAG more slots than the longest lag needs, because a block may be as far ahead of others. Outputs of other shards are written
// by the host before a launch.

__device__ inline const RatePart *rate_part_of(i64 global_cell) { return layout.rate_parts + layout.population_of_cell[global_cell]; }

__device__ inline float *outputs_of(int step) { return layout.outputs + ((i64)step & layout.output_mask) * layout.output_columns; }

// Sum weight x output over the synapses of a neuron for each of its rate inputs, in the order of the CPU: projections as they
// were added, sources by id, then delays. `driven` is 0 before.
COLD void sum_rate_inputs(int t, u32 cell, float *driven)
{
    const i64 global_cell = (i64)blockIdx.x * layout.cells + cell, groups = (layout.cells + WARP - 1) / WARP;
    const RatePart *part = rate_part_of(global_cell);
    for (i64 i = part->first_table; i < part->end_table; i++) {
        const RateTable *table = layout.rate_tables + i;
        const i64 first = table->starts[(i64)blockIdx.x * groups + cell / WARP] + cell % WARP;
        const u32 *sources = table->sources + first;
        const float *weights = table->weights + first;
        const i64 *lags = table->lags;
        u32 count = table->counts[global_cell];
        float total = driven[table->input];
        if (table->lag_count == 1) {
            const float *row = outputs_of(t - (int)lags[0]);
#pragma unroll 4
            for (u32 k = 0; k < count; k++)
                total = total + weights[(i64)k * WARP] * read_fresh(row + sources[(i64)k * WARP]);
        } else {
            const u16 *classes = table->classes + first;
#pragma unroll 4
            for (u32 k = 0; k < count; k++) {
                const float *row = outputs_of(t - (int)lags[classes[(i64)k * WARP]]);
                total = total + weights[(i64)k * WARP] * read_fresh(row + sources[(i64)k * WARP]);
            }
        }
        driven[table->input] = total;
    }
}

// Write the output of a neuron after step t to the ring; returns its part of the hash of the run. Silent neurons have the
// output 0.
__device__ inline u64 transmit(int t, u32 cell, u32 traits, const u32 *state)
{
    const RatePart *part = rate_part_of((i64)blockIdx.x * layout.cells + cell);
    if (part->output_row < 0)
        return 0;
    u32 bits = 0;
#pragma unroll
    for (int r = 0; r < STATE_ROWS; r++)  // states are in registers, which have no index
        if (r == (int)part->output_row && !is_silent(traits))
            bits = state[r];
    i64 q = (i64)cell * layout.blocks + blockIdx.x;
    outputs_of(t)[part->output_column + q] = bits_to_f(bits);
    return mix(((u64)t << 32 | (u64)(part->first_id + q)) * GOLDEN + (u64)bits * OUTPUT_FACTOR);
}
