
#ifndef SYMSHAPE_SEQUENCE
#define SYMSHAPE_SEQUENCE
/* A sequence of a ragged batch, in separate memory: its rows, and its item of each input and output with one item for each
 * sequence. The entry of the offsets is not read. An input without rows and items is that of the first sequence. */
typedef struct symshape_sequence {
    int64_t length; /* number of rows; the first member */
    const void *const *inputs;
    void *const *outputs;
} symshape_sequence;
#endif

/* Ragged batches: the input that holds the first row of each sequence and at last the number of rows; the symbols of
 * their numbers in `dims`; and the range of a sequence's length. PADDED_INPUTS */
#define UPPER_RAGGED_OFFSETS OFFSETS_INDEX
#define UPPER_RAGGED_SEQUENCES SEQUENCES_SYMBOL
#define UPPER_RAGGED_ROWS ROWS_SYMBOL
#define UPPER_RAGGED_LENGTH_MIN LENGTH_LO
#define UPPER_RAGGED_LENGTH_MAX LENGTH_HI

/* Upper bound of the staging memory of `run_sequences` and `run_padded`, for static arrays. */
#define UPPER_RAGGED_STAGING_MAX STAGING_BYTES

/* The first multiple of 64 that is at least `bytes`. */
static inline size_t PREFIX_padded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* Copies bytes; compilers replace the loop by the fastest copy that the machine has. */
static inline void PREFIX_copy(void *to, const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
}

/* Bytes of a row, or of the item of a sequence, of an input or, from UPPER_N_INPUTS on, of an output. */
static inline size_t PREFIX_part_bytes(uint32_t port) {
    static const size_t bytes[] = {PART_BYTES};
    return bytes[port];
}

/* Whether an input or output has rows (0), items (1), neither (2), or is the offsets (3). */
static inline uint32_t PREFIX_part_kind(uint32_t port) {
    static const uint8_t kinds[] = {PART_KINDS};
    return kinds[port];
}

/* Binds the dims of a call with these numbers of sequences and rows, or returns non-zero and describes the error. */
static inline int32_t PREFIX_ragged_dims(int64_t sequences, int64_t rows, int64_t *dims, PREFIX_error *error) {
    const int64_t offsets = sequences < INT64_MAX ? sequences + 1 : sequences;
SHAPE_LINES    (void)rows;
    (void)offsets;
    return PREFIX_check(shapes, dims, error);
}

/* Bytes of staging memory for a call with these dims. */
static inline size_t PREFIX_ragged_staging_bytes(const int64_t *dims) {
    const size_t sequences = (size_t)dims[UPPER_RAGGED_SEQUENCES];
    const size_t rows = (size_t)dims[UPPER_RAGGED_ROWS];
    size_t bytes = PREFIX_padded((sequences + 1) * sizeof(int64_t));
    for (uint32_t port = 0; port < UPPER_N_INPUTS + UPPER_N_OUTPUTS; port++) {
        const uint32_t kind = PREFIX_part_kind(port);
        if (kind < 2) bytes += PREFIX_padded((kind == 0 ? rows : sequences) * PREFIX_part_bytes(port));
    }
    return bytes;
}

/* Adds the offset after a sequence of this length. Refuses lengths that the contract does not allow. */
static inline int32_t PREFIX_add_length(int64_t *offsets, size_t sequence, int64_t length, PREFIX_error *error) {
    PREFIX_error refused = {SYMSHAPE_OUT_OF_RANGE, UPPER_RAGGED_OFFSETS, (uint32_t)sequence, UINT32_MAX, length,
                            UPPER_RAGGED_LENGTH_MIN, UPPER_RAGGED_LENGTH_MAX, LENGTH_NAME, "the length", 0};
    if (length < UPPER_RAGGED_LENGTH_MIN || length > UPPER_RAGGED_LENGTH_MAX) {
        refused.why = "the length of a sequence";
        *error = refused;
        return refused.code;
    }
    if (length > ROWS_MAX - offsets[sequence]) {
        refused.symbol = UPPER_RAGGED_ROWS;
        refused.symbol_name = ROWS_NAME;
        refused.value = offsets[sequence] + length;
        refused.lo = 1;
        refused.hi = ROWS_MAX;
        refused.why = "the rows of all sequences";
        *error = refused;
        return refused.code;
    }
    offsets[sequence + 1] = offsets[sequence] + length;
    return SYMSHAPE_OK;
}

/* Writes the offsets of `count` sequences and binds the dims, or returns non-zero and describes the error. The lengths are
 * `int64_t`, `stride` bytes apart. */
static inline int32_t PREFIX_bind_lengths(const void *lengths, size_t stride, size_t count, int64_t *offsets,
                                          int64_t *dims, PREFIX_error *error) {
    if (count > SEQUENCES_MAX) return PREFIX_ragged_dims((int64_t)count, 1, dims, error);
    offsets[0] = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t length;
        int32_t code;
        PREFIX_copy(&length, (const unsigned char *)lengths + i * stride, sizeof length);
        code = PREFIX_add_length(offsets, i, length, error);
        if (code != SYMSHAPE_OK) return code;
    }
    return PREFIX_ragged_dims((int64_t)count, offsets[count], dims, error);
}

/* Runs sequences in separate memory: copies their rows to `staging`, runs once, and copies the results
 * to their outputs. `arena` has PREFIX_arena_bytes bytes for the dims of PREFIX_ragged_dims, or UPPER_ARENA_MAX, and
 * `staging` has PREFIX_ragged_staging_bytes bytes for them, or UPPER_RAGGED_STAGING_MAX; both are 64-byte aligned. A
 * call that is refused has written no output. */
static inline int32_t PREFIX_run_sequences(const symshape_sequence *sequences, size_t count, void *arena,
                                           void *staging, const PREFIX_exec *exec) {
    int64_t dims[UPPER_N_SYMBOLS + UPPER_N_DATA_DEPENDENT + 1];
    const void *inputs[ADDRESS_COUNT];
    void *outputs[UPPER_N_OUTPUTS];
    int64_t *const offsets = (int64_t *)staging;
    unsigned char *at;
    PREFIX_error error;
    int32_t code = PREFIX_bind_lengths(sequences, sizeof *sequences, count, offsets, dims, &error);
    if (code != SYMSHAPE_OK) {
        if (exec && exec->error) *exec->error = error;
        return code;
    }

    at = (unsigned char *)staging + PREFIX_padded((count + 1) * sizeof *offsets);
    for (uint32_t port = 0; port < UPPER_N_INPUTS + UPPER_N_OUTPUTS; port++) {
        const uint32_t kind = PREFIX_part_kind(port);
        const int is_input = port < UPPER_N_INPUTS;
        unsigned char *to = at;
        if (is_input && kind >= 2) {
            inputs[port] = kind == 3 ? (const void *)offsets : sequences[0].inputs[port];
            continue;
        }
        if (is_input) inputs[port] = to;
        else outputs[port - UPPER_N_INPUTS] = to;
        for (size_t i = 0; i < count; i++) {
            const size_t bytes = PREFIX_part_bytes(port) * (kind == 0 ? (size_t)sequences[i].length : 1);
            if (is_input) PREFIX_copy(to, sequences[i].inputs[port], bytes);
            to += bytes;
        }
        at += PREFIX_padded((size_t)(to - at));
    }

    WEIGHTS_OF_SEQUENCE
    code = PREFIX_run(inputs, outputs, dims, arena, exec);
    if (code != SYMSHAPE_OK) return code;
    for (uint32_t output = 0; output < UPPER_N_OUTPUTS; output++) {
        const uint32_t port = UPPER_N_INPUTS + output;
        const unsigned char *from = (const unsigned char *)outputs[output];
        for (size_t i = 0; i < count; i++) {
            const size_t bytes =
                PREFIX_part_bytes(port) * (PREFIX_part_kind(port) == 0 ? (size_t)sequences[i].length : 1);
            PREFIX_copy(sequences[i].outputs[output], from, bytes);
            from += bytes;
        }
    }
    return SYMSHAPE_OK;
}

/* Copies a row between `row` and its place in a padded tensor of `count` sequences and `positions` positions. */
static inline void PREFIX_copy_row(uint32_t port, unsigned char *row, unsigned char *padded, int to_padded, size_t count,
                                   size_t positions, size_t sequence, size_t position) {
    /* All sequences have the same rows (0); the axis of sequences precedes that of positions (1), or follows it (2). */
    static const uint8_t orders[] = {ROW_ORDERS};
    static const size_t runs[] = {ROW_RUNS};
    const size_t run_bytes = PREFIX_part_bytes(port) / runs[port];
    for (size_t run = 0; run < runs[port]; run++) {
        const size_t index = orders[port] == 0   ? position
                             : orders[port] == 1 ? sequence * positions + position
                                                 : (position * runs[port] + run) * count + sequence;
        unsigned char *const own = row + run * run_bytes;
        unsigned char *const place = padded + index * run_bytes;
        if (to_padded) PREFIX_copy(place, own, run_bytes);
        else PREFIX_copy(own, place, run_bytes);
    }
}

/* Runs the tensors of the padded model: `count` sequences of `positions` positions. The tokens of sequence i are
 * `lengths[i]` positions from `first[i]` on, or from 0 on if `first` is null. The entries of `inputs` are those of a
 * ragged call; the offsets are not read, and there is no mask. Only the rows of tokens are written to outputs with rows:
 * padding keeps its content. Memory and errors are as for PREFIX_run_sequences. */
static inline int32_t PREFIX_run_padded(const void *const *inputs, void *const *outputs, const int64_t *first,
                                        const int64_t *lengths, size_t count, int64_t positions, void *arena,
                                        void *staging, const PREFIX_exec *exec) {
    int64_t dims[UPPER_N_SYMBOLS + UPPER_N_DATA_DEPENDENT + 1];
    const void *packed[ADDRESS_COUNT];
    void *results[UPPER_N_OUTPUTS];
    int64_t *const offsets = (int64_t *)staging;
    unsigned char *at;
    PREFIX_error error;
    int32_t code = PREFIX_bind_lengths(lengths, sizeof *lengths, count, offsets, dims, &error);
    if (positions < 0) positions = 0; /* the differences below don't overflow */
    for (size_t i = 0; i < count && code == SYMSHAPE_OK; i++) {
        const int64_t begin = first ? first[i] : 0;
        if (begin < 0 || begin > positions - lengths[i]) {
            const PREFIX_error refused = {SYMSHAPE_OUT_OF_RANGE, UPPER_RAGGED_OFFSETS, (uint32_t)i, UINT32_MAX, begin,
                                          0, positions - lengths[i], "the first position", "the tokens",
                                          "the tokens of a sequence are inside the padded length"};
            error = refused;
            code = refused.code;
        }
    }
    if (code != SYMSHAPE_OK) {
        if (exec && exec->error) *exec->error = error;
        return code;
    }

    at = (unsigned char *)staging + PREFIX_padded((count + 1) * sizeof *offsets);
    for (uint32_t port = 0; port < UPPER_N_INPUTS + UPPER_N_OUTPUTS; port++) {
        const uint32_t kind = PREFIX_part_kind(port);
        const int is_input = port < UPPER_N_INPUTS;
        if (kind != 0) {
            if (is_input) packed[port] = kind == 3 ? (const void *)offsets : inputs[port];
            else results[port - UPPER_N_INPUTS] = outputs[port - UPPER_N_INPUTS];
            continue;
        }
        if (is_input) packed[port] = at;
        else results[port - UPPER_N_INPUTS] = at;
        for (size_t i = 0; i < count && is_input; i++) {
            for (int64_t k = 0; k < lengths[i]; k++) {
                unsigned char *const row = at + (size_t)(offsets[i] + k) * PREFIX_part_bytes(port);
                PREFIX_copy_row(port, row, (unsigned char *)(uintptr_t)inputs[port], 0, count, (size_t)positions, i,
                                (size_t)((first ? first[i] : 0) + k));
            }
        }
        at += PREFIX_padded((size_t)offsets[count] * PREFIX_part_bytes(port));
    }

    WEIGHTS_OF_PADDED
    code = PREFIX_run(packed, results, dims, arena, exec);
    if (code != SYMSHAPE_OK) return code;
    for (uint32_t output = 0; output < UPPER_N_OUTPUTS; output++) {
        const uint32_t port = UPPER_N_INPUTS + output;
        if (PREFIX_part_kind(port) != 0) continue;
        for (size_t i = 0; i < count; i++) {
            for (int64_t k = 0; k < lengths[i]; k++) {
                unsigned char *const row =
                    (unsigned char *)results[output] + (size_t)(offsets[i] + k) * PREFIX_part_bytes(port);
                PREFIX_copy_row(port, row, (unsigned char *)outputs[output], 1, count, (size_t)positions, i,
                                (size_t)((first ? first[i] : 0) + k));
            }
        }
    }
    return SYMSHAPE_OK;
}
