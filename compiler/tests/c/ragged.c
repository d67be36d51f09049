/* Runs sequences of different lengths of a ragged batch from C: rows one after another, sequences in separate memory,
 * and padded tensors. All must have the same bits, which the program prints. Calls with wrong lengths must be refused.
 * Returns 0 if all is well, or the number of the step that failed.
 *
 * The model has the inputs ids[T], positions[1, T], bias[N, 16], scale[16], offsets[N + 1], and the outputs hidden[T, 16]
 * and mean[N, 16], for N in 1..5, T up to 60, and sequences of 1 to 37 rows. */
#include "ports.h"

#include <stdio.h>
#include <string.h>

enum { COUNT = 4, WIDTH = 16, LONGEST = 37, ROWS = 60, POSITIONS = 33 };

static const int64_t lengths[COUNT] = {3, 1, 30, 9};
static const int64_t first[COUNT] = {30, 0, 2, 11};

static int64_t ids[COUNT][LONGEST], positions[LONGEST];
static float bias[COUNT][WIDTH], scale[WIDTH];
static float hidden[COUNT][LONGEST][WIDTH], mean[COUNT][WIDTH];
static float rows_hidden[ROWS][WIDTH], rows_mean[COUNT][WIDTH];
static float padded_hidden[COUNT][POSITIONS][WIDTH], padded_mean[COUNT][WIDTH];
static int64_t padded_ids[COUNT][POSITIONS], padded_positions[POSITIONS];

/* Static memory, aligned by hand: C99 has no alignas. */
static unsigned char arena_bytes[PORTS_ARENA_MAX + 64], staging_bytes[PORTS_RAGGED_STAGING_MAX + 64];

static void *aligned(unsigned char *bytes) {
    return bytes + (64 - (uintptr_t)bytes % 64) % 64;
}

static const void *sequence_inputs[COUNT][PORTS_N_INPUTS];
static void *sequence_outputs[COUNT][PORTS_N_OUTPUTS];
static symshape_sequence sequences[COUNT];

static void fill(void) {
    for (int k = 0; k < WIDTH; k++) scale[k] = 0.75f;
    for (int k = 0; k < LONGEST; k++) positions[k] = k;
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < (int)lengths[i]; k++) ids[i][k] = (i * 31 + k * 7) % 50;
        for (int k = 0; k < WIDTH; k++) bias[i][k] = (float)(i * WIDTH + k) / 16.0f;
        sequence_inputs[i][PORTS_INPUT_IDS] = ids[i];
        sequence_inputs[i][PORTS_INPUT_POSITIONS] = positions;
        sequence_inputs[i][PORTS_INPUT_BIAS] = bias[i];
        sequence_inputs[i][PORTS_INPUT_SCALE] = scale;
        sequence_outputs[i][PORTS_OUTPUT_HIDDEN] = hidden[i];
        sequence_outputs[i][PORTS_OUTPUT_MEAN] = mean[i];
        sequences[i].length = lengths[i];
        sequences[i].inputs = sequence_inputs[i];
        sequences[i].outputs = sequence_outputs[i];
    }
}

/* One call with the rows of all sequences one after another. */
static int run_rows(void) {
    int64_t all_ids[ROWS], all_positions[ROWS], offsets[COUNT + 1] = {0}, dims[PORTS_N_SYMBOLS];
    const void *inputs[PORTS_N_INPUTS];
    void *outputs[PORTS_N_OUTPUTS];
    symshape_error error;
    for (int i = 0; i < COUNT; i++) {
        for (int64_t k = 0; k < lengths[i]; k++) {
            all_ids[offsets[i] + k] = ids[i][k];
            all_positions[offsets[i] + k] = k;
        }
        offsets[i + 1] = offsets[i] + lengths[i];
    }
    inputs[PORTS_INPUT_IDS] = all_ids;
    inputs[PORTS_INPUT_POSITIONS] = all_positions;
    inputs[PORTS_INPUT_BIAS] = bias;
    inputs[PORTS_INPUT_SCALE] = scale;
    inputs[PORTS_RAGGED_OFFSETS] = offsets;
    outputs[PORTS_OUTPUT_HIDDEN] = rows_hidden;
    outputs[PORTS_OUTPUT_MEAN] = rows_mean;
    if (ports_ragged_dims(COUNT, offsets[COUNT], dims, &error) != SYMSHAPE_OK) return 1;
    if (dims[PORTS_RAGGED_SEQUENCES] != COUNT || dims[PORTS_RAGGED_ROWS] != offsets[COUNT]) return 2;
    if (ports_arena_bytes(dims) > PORTS_ARENA_MAX) return 3;
    if (ports_ragged_staging_bytes(dims) > PORTS_RAGGED_STAGING_MAX) return 4;
    return ports_run(inputs, outputs, dims, aligned(arena_bytes), NULL) == SYMSHAPE_OK ? 0 : 5;
}

/* Whether the results in separate memory have the bits of the rows. */
static int differ(void) {
    int64_t row = 0;
    for (int i = 0; i < COUNT; i++) {
        const size_t bytes = (size_t)lengths[i] * WIDTH * sizeof(float);
        if (memcmp(hidden[i], rows_hidden[row], bytes) != 0) return 1;
        if (memcmp(mean[i], rows_mean[i], sizeof mean[i]) != 0) return 2;
        row += lengths[i];
    }
    return 0;
}

/* The tensors of the padded model, where the tokens of each sequence begin anywhere. The positions are those of the
 * places, so that the bits of sequences that begin at 0 are the same. */
static int run_padded(const int64_t *begins) {
    const void *inputs[PORTS_N_INPUTS] = {0};
    void *outputs[PORTS_N_OUTPUTS];
    memset(padded_hidden, 0x7f, sizeof padded_hidden);
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < POSITIONS; k++) padded_ids[i][k] = 49;
        for (int64_t k = 0; k < lengths[i]; k++) padded_ids[i][(begins ? begins[i] : 0) + k] = ids[i][k];
    }
    for (int k = 0; k < POSITIONS; k++) padded_positions[k] = k;
    inputs[PORTS_INPUT_IDS] = padded_ids;
    inputs[PORTS_INPUT_POSITIONS] = padded_positions;
    inputs[PORTS_INPUT_BIAS] = bias;
    inputs[PORTS_INPUT_SCALE] = scale;
    outputs[PORTS_OUTPUT_HIDDEN] = padded_hidden;
    outputs[PORTS_OUTPUT_MEAN] = padded_mean;
    return ports_run_padded(inputs, outputs, begins, lengths, COUNT, POSITIONS, aligned(arena_bytes),
                            aligned(staging_bytes), NULL);
}

static int check_padded(const int64_t *begins) {
    unsigned char untouched[sizeof padded_hidden[0][0]];
    int64_t row = 0;
    memset(untouched, 0x7f, sizeof untouched);
    for (int i = 0; i < COUNT; i++) {
        const int64_t begin = begins ? begins[i] : 0;
        const int has_same_positions = begin == 0;
        for (int64_t k = 0; k < POSITIONS; k++) {
            const int is_token = k >= begin && k < begin + lengths[i];
            if (!is_token && memcmp(padded_hidden[i][k], untouched, sizeof untouched) != 0) return 1;
            if (!is_token || !has_same_positions) continue;
            if (memcmp(padded_hidden[i][k], rows_hidden[row + k], sizeof untouched) != 0) return 2;
        }
        if (has_same_positions && memcmp(padded_mean[i], rows_mean[i], sizeof rows_mean[i]) != 0) return 3;
        row += lengths[i];
    }
    return 0;
}

/* The error of a call of these lengths, which must be refused before a byte of an output is written. */
static int refused(const int64_t *wrong, size_t count, const char *symbol, int64_t value) {
    symshape_sequence list[8];
    symshape_error error;
    const symshape_exec exec = {NULL, 1, SYMSHAPE_AUTO, NULL, &error};
    memset(&error, 0, sizeof error);
    for (size_t i = 0; i < count; i++) {
        list[i] = sequences[i % COUNT];
        list[i].length = wrong[i];
    }
    if (ports_run_sequences(list, count, aligned(arena_bytes), aligned(staging_bytes), &exec) == SYMSHAPE_OK) return 1;
    if (error.symbol_name == NULL || strcmp(error.symbol_name, symbol) != 0) return 2;
    return error.value == value ? 0 : 3;
}

static int refusals(void) {
    const int64_t zero[] = {3, 0}, negative[] = {-1}, smallest[] = {INT64_MIN}, largest[] = {3, INT64_MAX};
    const int64_t long_one[] = {38}, many_rows[] = {37, 24}, many[] = {1, 1, 1, 1, 1, 1};
    const int64_t outside[COUNT] = {31, 0, 0, 0}, before[COUNT] = {0, -1, 0, 0};
    if (refused(zero, 2, "S", 0) != 0) return 1;
    if (refused(negative, 1, "S", -1) != 0) return 2;
    if (refused(smallest, 1, "S", INT64_MIN) != 0) return 3;
    if (refused(largest, 2, "S", INT64_MAX) != 0) return 4;
    if (refused(long_one, 1, "S", 38) != 0) return 5;
    if (refused(many_rows, 2, "T", 61) != 0) return 6;
    if (refused(many, 6, "N", 6) != 0) return 7;
    if (refused(many, 0, "T", 0) != 0) return 8;
    if (run_padded(outside) == SYMSHAPE_OK) return 9;
    if (run_padded(before) == SYMSHAPE_OK) return 10;
    if (ports_run_padded(NULL, NULL, NULL, lengths, COUNT, INT64_MIN, NULL, aligned(staging_bytes), NULL) == SYMSHAPE_OK) {
        return 11;
    }
    return 0;
}

int main(void) {
    int step;
    fill();
    if ((step = run_rows()) != 0) return 10 + step;
    memset(hidden, 0x7f, sizeof hidden);
    if (ports_run_sequences(sequences, COUNT, aligned(arena_bytes), aligned(staging_bytes), NULL) != SYMSHAPE_OK) return 20;
    if ((step = differ()) != 0) return 20 + step;
    if (run_padded(NULL) != SYMSHAPE_OK) return 30;
    if ((step = check_padded(NULL)) != 0) return 30 + step;
    if (run_padded(first) != SYMSHAPE_OK) return 40;
    if ((step = check_padded(first)) != 0) return 40 + step;
    if ((step = refusals()) != 0) return 50 + step;

    for (int64_t row = 0; row < 43; row++) {
        for (int k = 0; k < WIDTH; k++) {
            uint32_t bits;
            memcpy(&bits, &rows_hidden[row][k], sizeof bits);
            printf("%08x\n", bits);
        }
    }
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < WIDTH; k++) {
            uint32_t bits;
            memcpy(&bits, &rows_mean[i][k], sizeof bits);
            printf("%08x\n", bits);
        }
    }
    return 0;
}
