/* Whether the bytes of the arena provably never decrease as one dim grows and the others stay. */
#define UPPER_ARENA_IS_MONOTONE MONOTONE_VALUE

/* The number of allowed values of a symbol; 0 if there is no such symbol. */
static inline uint64_t PREFIX_dim_count(uint32_t symbol) {
    switch (symbol) {
COUNT_CASES    default:
        return 0;
    }
}

/* The allowed value of a symbol at the index `index` in ascending order; `index` is below the count. */
static inline int64_t PREFIX_dim_value(uint32_t symbol, uint64_t index) {
    switch (symbol) {
VALUE_CASES    default:
        (void)index;
        return 0;
    }
}

/* Sets dims[symbol] to its largest allowed value whose calls need at most `bytes` of arena; the other dims must be
 * allowed values. Returns non-zero when there is no such symbol, or when every value needs more: dims[symbol] is then
 * the smallest value. Relations between symbols are not checked.
 *
 * Values below one that fits do so too if the arena is monotone: then the values are bisected. Otherwise they are tried
 * from the largest down. More than 2^20 values are always bisected; without monotonicity, a larger one may fit as well. */
static inline int32_t PREFIX_max_dim(uint32_t symbol, size_t bytes, int64_t *dims) {
    const uint64_t count = PREFIX_dim_count(symbol);
    const int is_bisected = UPPER_ARENA_IS_MONOTONE || count > 1048576;
    uint64_t lo = 0;
    uint64_t hi = count;
    if (count == 0) return SYMSHAPE_OUT_OF_RANGE;

    /* The answer is among the first `hi` values; value `lo - 1` fits, if there is one. */
    while (lo < hi) {
        const uint64_t mid = is_bisected ? lo + (hi - lo) / 2 : hi - 1;
        dims[symbol] = PREFIX_dim_value(symbol, mid);
        if (PREFIX_arena_bytes(dims) <= bytes) lo = mid + 1;
        else hi = mid;
    }

    dims[symbol] = PREFIX_dim_value(symbol, lo == 0 ? 0 : lo - 1);
    return lo == 0 ? SYMSHAPE_OUT_OF_RANGE : SYMSHAPE_OK;
}

