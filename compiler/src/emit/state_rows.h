
/* Number of rows of a state. */
static inline int64_t PREFIX_state_length(const void *state) { return PREFIX_state_words(state)[1]; }

/* Number of rows that a state has memory for. */
static inline int64_t PREFIX_state_capacity(const void *state) { return PREFIX_state_words(state)[0]; }

/* Forgets the rows after the first `length` ones; returns non-zero if there are fewer. Overwritten tensors stay as they
 * are: if the model has some, call it only for length 0, after PREFIX_state_reset. */
static inline int32_t PREFIX_state_truncate(void *state, int64_t length) {
    int64_t *const words = (int64_t *)((unsigned char *)state + sizeof(symshape_state_header));
    if (length < 0 || length > words[1]) return SYMSHAPE_OUT_OF_RANGE;
    words[1] = length;
    return SYMSHAPE_OK;
}

/* The largest capacity for which a state takes at most `bytes` bytes, or 0. `dims` has the other sizes of the state; its
 * entry for the capacity is overwritten. */
static inline int64_t PREFIX_state_max_capacity(size_t bytes, int64_t *dims) {
    int64_t lo = 0, hi = CAPACITY_MAX;
    while (lo < hi) {
        const int64_t middle = hi - (hi - lo) / 2;
        dims[CAPACITY_SYMBOL] = middle;
        if (PREFIX_state_bytes(dims) <= bytes) lo = middle;
        else hi = middle - 1;
    }
    dims[CAPACITY_SYMBOL] = lo;
    return lo;
}
