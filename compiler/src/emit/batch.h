
/* The symbol that counts the rows: the first axis of every output and of every input that has it. */
#define UPPER_ROW_SYMBOL ROW_INDEX

/* Upper bound of the staging memory of `run_group`, for static arrays. */
#define UPPER_STAGING_MAX STAGING_BYTES

/* The number of rows of a request. */
static inline int64_t PREFIX_rows(const symshape_request *request) {
    return request->shapes[FIRST_ROW_INPUT][0];
}

/* Bytes of one row of an input, or of the whole input if it has no rows; its shape has passed the check. */
static inline size_t PREFIX_input_row_bytes(uint32_t input, const int64_t *shape) {
    static const uint32_t ranks[UPPER_N_INPUTS] = {INPUT_RANKS};
    static const uint32_t elem_bytes[UPPER_N_INPUTS] = {INPUT_ELEM_BYTES};
    static const uint8_t has_rows[UPPER_N_INPUTS] = {INPUT_HAS_ROWS};
    size_t bytes = elem_bytes[input];
    for (uint32_t axis = has_rows[input]; axis < ranks[input]; axis++) bytes *= (size_t)shape[axis];
    return bytes;
}

/* Bytes of one row of an output at these dims. */
static inline size_t PREFIX_output_row_bytes(uint32_t output, const int64_t *dims) {
    static const uint32_t ranks[UPPER_N_OUTPUTS] = {OUTPUT_RANKS};
    static const uint32_t elem_bytes[UPPER_N_OUTPUTS] = {OUTPUT_ELEM_BYTES};
    int64_t shape[MAX_RANK];
    size_t bytes = elem_bytes[output];
    if (PREFIX_output_shape(output, dims, shape) != SYMSHAPE_OK) return 0;
    for (uint32_t axis = 1; axis < ranks[output]; axis++) bytes *= (size_t)shape[axis];
    return bytes;
}

/* Whether two requests can share a call: their shapes differ only in the number of rows, and inputs without rows are
 * the same memory. */
static inline int PREFIX_same_rows(const symshape_request *a, const symshape_request *b) {
    static const uint32_t ranks[UPPER_N_INPUTS] = {INPUT_RANKS};
    static const uint8_t has_rows[UPPER_N_INPUTS] = {INPUT_HAS_ROWS};
    for (uint32_t input = 0; input < UPPER_N_INPUTS; input++) {
        if (!has_rows[input] && a->inputs[input] != b->inputs[input]) return 0;
        if (has_rows[input] && b->shapes[input][0] != PREFIX_rows(b)) return 0;
        for (uint32_t axis = has_rows[input]; axis < ranks[input]; axis++) {
            if (a->shapes[input][axis] != b->shapes[input][axis]) return 0;
        }
    }
    return 1;
}

/* Checks the whole contract for `rows` rows of the request's shape, and the limits; writes the dims. */
static inline int32_t PREFIX_check_rows(const symshape_request *request, int64_t rows, int64_t max_rows,
                                        size_t arena_bytes, int64_t *dims, PREFIX_error *error) {
    static const uint32_t ranks[UPPER_N_INPUTS] = {INPUT_RANKS};
    static const uint8_t has_rows[UPPER_N_INPUTS] = {INPUT_HAS_ROWS};
    int64_t sizes[UPPER_N_INPUTS][MAX_RANK];
    const int64_t *shapes[UPPER_N_INPUTS];
    const PREFIX_error refused = {SYMSHAPE_OUT_OF_RANGE, FIRST_ROW_INPUT, 0, UPPER_ROW_SYMBOL, 0, 1, 0, ROW_NAME,
                                  FIRST_ROW_NAME, 0};
    for (uint32_t input = 0; input < UPPER_N_INPUTS; input++) {
        shapes[input] = sizes[input];
        for (uint32_t axis = 0; axis < ranks[input]; axis++) sizes[input][axis] = request->shapes[input][axis];
        if (has_rows[input] && sizes[input][0] == PREFIX_rows(request)) sizes[input][0] = rows;
    }

    if (rows < 1 || rows > max_rows) {
        *error = refused;
        error->value = rows;
        error->hi = max_rows;
        error->why = "the limit of rows of a batch";
        return error->code;
    }
    if (PREFIX_check(shapes, dims, error) != SYMSHAPE_OK) return error->code;
    if (PREFIX_arena_bytes(dims) > arena_bytes) {
        *error = refused;
        error->value = rows;
        error->hi = PREFIX_max_dim(UPPER_ROW_SYMBOL, arena_bytes, dims) == SYMSHAPE_OK ? dims[UPPER_ROW_SYMBOL] : 0;
        error->why = "the limit of arena bytes of a batch";
        return error->code;
    }
    return SYMSHAPE_OK;
}

/* Checks a request before it waits: the whole contract, 1 to `max_rows` rows, and at most `arena_bytes` of arena. */
static inline int32_t PREFIX_accept(const symshape_request *request, int64_t max_rows, size_t arena_bytes,
                                    PREFIX_error *error) {
    int64_t dims[UPPER_N_SYMBOLS + UPPER_N_DATA_DEPENDENT + 1];
    return PREFIX_check_rows(request, PREFIX_rows(request), max_rows, arena_bytes, dims, error);
}

/* Forms the group of the next call from accepted requests in the order of their arrival: the first one, and later ones
 * that can share its call, within the limits. Writes their indices to `group` and the dims of the call to `dims`, and
 * returns their number: 0 if there is no request, or the first one is refused. The first request is always in the
 * group, so no shape starves. */
static inline size_t PREFIX_group(const symshape_request *requests, size_t count, int64_t max_rows, size_t arena_bytes,
                                  size_t *group, int64_t *dims) {
    int64_t trial[UPPER_N_SYMBOLS + UPPER_N_DATA_DEPENDENT + 1];
    PREFIX_error error;
    int64_t rows;
    size_t n_tried = 1;
    size_t n_grouped = 1;
    if (count == 0) return 0;
    rows = PREFIX_rows(&requests[0]);
    if (PREFIX_check_rows(&requests[0], rows, max_rows, arena_bytes, dims, &error) != SYMSHAPE_OK) return 0;

    group[0] = 0;
    for (size_t i = 1; i < count; i++) {
        const int64_t more = PREFIX_rows(&requests[i]);
        if (!PREFIX_same_rows(&requests[0], &requests[i])) continue;
        if (more < 1 || more > max_rows - rows) break;

        /* Some sums may be outside the contract, as with steps; a longer group may be inside it again. */
        rows += more;
        group[n_tried++] = i;
        if (PREFIX_check_rows(&requests[0], rows, max_rows, arena_bytes, trial, &error) != SYMSHAPE_OK) continue;
        n_grouped = n_tried;
        for (uint32_t k = 0; k < UPPER_N_SYMBOLS + UPPER_N_DATA_DEPENDENT; k++) dims[k] = trial[k];
    }
    return n_grouped;
}

/* The first multiple of 64 that is at least `bytes`. */
static inline size_t PREFIX_padded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* Bytes of staging memory that `run_group` needs for this group. */
static inline size_t PREFIX_staging_bytes(const symshape_request *requests, const size_t *group, size_t n_grouped,
                                          const int64_t *dims) {
    static const uint8_t has_rows[UPPER_N_INPUTS] = {INPUT_HAS_ROWS};
    const size_t rows = (size_t)dims[UPPER_ROW_SYMBOL];
    size_t bytes = 0;
    if (n_grouped < 2) return 0;
    for (uint32_t input = 0; input < UPPER_N_INPUTS; input++) {
        const int64_t *shape = requests[group[0]].shapes[input];
        if (has_rows[input]) bytes += PREFIX_padded(rows * PREFIX_input_row_bytes(input, shape));
    }
    for (uint32_t output = 0; output < UPPER_N_OUTPUTS; output++) {
        bytes += PREFIX_padded(rows * PREFIX_output_row_bytes(output, dims));
    }
    return bytes;
}

/* Copies bytes; compilers replace the loop by the fastest copy that the machine has. */
static inline void PREFIX_copy(void *to, const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
}

/* Runs a group of requests in one call: copies their rows to `staging`, runs, and copies the results to the requests'
 * outputs. `dims` are those of `PREFIX_group`; `staging` is 64-byte aligned memory of PREFIX_staging_bytes bytes. A
 * group of one request runs in place. A result has the bits that it has alone. */
static inline int32_t PREFIX_run_group(const symshape_request *requests, const size_t *group, size_t n_grouped,
                                       int64_t *dims, void *arena, void *staging, const PREFIX_exec *exec) {
    static const uint8_t has_rows[UPPER_N_INPUTS] = {INPUT_HAS_ROWS};
    const void *inputs[ADDRESS_COUNT];
    void *outputs[UPPER_N_OUTPUTS];
    unsigned char *at = (unsigned char *)staging;
    const size_t rows = (size_t)dims[UPPER_ROW_SYMBOL];
    int32_t code;
    if (n_grouped == 0) return SYMSHAPE_OK;
    if (n_grouped == 1) {
        const symshape_request *only = &requests[group[0]];
        return PREFIX_run(only->inputs, only->outputs, dims, arena, exec);
    }

    for (uint32_t input = 0; input < UPPER_N_INPUTS; input++) {
        const size_t row = PREFIX_input_row_bytes(input, requests[group[0]].shapes[input]);
        unsigned char *to = at;
        inputs[input] = has_rows[input] ? at : requests[group[0]].inputs[input];
        if (!has_rows[input]) continue;
        for (size_t i = 0; i < n_grouped; i++) {
            const symshape_request *request = &requests[group[i]];
            const size_t bytes = row * (size_t)PREFIX_rows(request);
            PREFIX_copy(to, request->inputs[input], bytes);
            to += bytes;
        }
        at += PREFIX_padded(rows * row);
    }
    for (uint32_t output = 0; output < UPPER_N_OUTPUTS; output++) {
        outputs[output] = at;
        at += PREFIX_padded(rows * PREFIX_output_row_bytes(output, dims));
    }

    WEIGHTS_ADDRESS
    code = PREFIX_run(inputs, outputs, dims, arena, exec);
    if (code != SYMSHAPE_OK) return code;
    for (uint32_t output = 0; output < UPPER_N_OUTPUTS; output++) {
        const unsigned char *from = (const unsigned char *)outputs[output];
        for (size_t i = 0; i < n_grouped; i++) {
            const symshape_request *request = &requests[group[i]];
            const size_t bytes = PREFIX_output_row_bytes(output, dims) * (size_t)PREFIX_rows(request);
            PREFIX_copy(request->outputs[output], from, bytes);
            from += bytes;
        }
    }
    return SYMSHAPE_OK;
}

/* Runs a batch whose rows lie in several blocks of memory: one call for each block, in place and in order. All blocks
 * are checked before the first one runs. After each block, `each`, unless it is null, gets `data` and the block's
 * index: its results are ready. `arena` has `arena_bytes` bytes, which is enough for the largest block. A row has the
 * bits that it has in one call of the whole batch. */
static inline int32_t PREFIX_run_blocks(const symshape_request *blocks, size_t count, void *arena, size_t arena_bytes,
                                        const PREFIX_exec *exec, void (*each)(void *data, size_t block), void *data) {
    int64_t dims[UPPER_N_SYMBOLS + UPPER_N_DATA_DEPENDENT + 1];
    PREFIX_error error;
    for (size_t i = 0; i < count; i++) {
        const int64_t rows = PREFIX_rows(&blocks[i]);
        if (PREFIX_check_rows(&blocks[i], rows, INT64_MAX, arena_bytes, dims, &error) == SYMSHAPE_OK) continue;
        if (exec && exec->error) *exec->error = error;
        return error.code;
    }

    for (size_t i = 0; i < count; i++) {
        int32_t code = PREFIX_check(blocks[i].shapes, dims, &error);
        if (code == SYMSHAPE_OK) code = PREFIX_run(blocks[i].inputs, blocks[i].outputs, dims, arena, exec);
        if (code != SYMSHAPE_OK) return code;
        if (each) each(data, i);
    }
    return SYMSHAPE_OK;
}
