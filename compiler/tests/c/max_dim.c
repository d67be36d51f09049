/* Compares the inverse query of a model's header with a search of all values; returns 0 if they agree.
 *
 * Compiled with -DMODEL=<prefix>, -DN_SYMBOLS=<count> and -include <prefix>.h. The other dims are the smallest, second
 * smallest, an odd, the second largest and the largest. The budgets are those of every value, one byte less and more. */
#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)

/* The allowed value of a symbol at one of five edges. */
static int64_t edge_value(uint32_t symbol, int edge) {
    const uint64_t last = NAME(MODEL, dim_count)(symbol) - 1;
    const uint64_t second = last > 0 ? 1 : 0;
    const uint64_t indices[5] = {0, second, last / 2 * 2, last - second, last};
    return NAME(MODEL, dim_value)(symbol, indices[edge]);
}

static size_t bytes_at(uint32_t symbol, int64_t value, int64_t *dims) {
    dims[symbol] = value;
    return NAME(MODEL, arena_bytes)(dims);
}

/* Whether the query agrees with a search. */
static int agrees(uint32_t symbol, size_t budget, int64_t *dims) {
    const uint64_t count = NAME(MODEL, dim_count)(symbol);
    int64_t expected = NAME(MODEL, dim_value)(symbol, 0);
    int32_t code = SYMSHAPE_OUT_OF_RANGE;
    for (uint64_t index = 0; index < count; index++) {
        const int64_t value = NAME(MODEL, dim_value)(symbol, index);
        if (bytes_at(symbol, value, dims) > budget) continue;
        expected = value;
        code = SYMSHAPE_OK;
    }

    dims[symbol] = -1;
    return NAME(MODEL, max_dim)(symbol, budget, dims) == code && dims[symbol] == expected;
}

int main(void) {
    int64_t dims[N_SYMBOLS] = {0};
    if (NAME(MODEL, max_dim)(N_SYMBOLS, 0, dims) == SYMSHAPE_OK) return 1;

    for (int edge = 0; edge < 5; edge++) {
        for (uint32_t symbol = 0; symbol < N_SYMBOLS; symbol++) {
            for (uint32_t other = 0; other < N_SYMBOLS; other++) dims[other] = edge_value(other, edge);
            for (uint64_t index = 0; index < NAME(MODEL, dim_count)(symbol); index++) {
                const size_t bytes = bytes_at(symbol, NAME(MODEL, dim_value)(symbol, index), dims);
                if (!agrees(symbol, bytes, dims) || !agrees(symbol, bytes + 1, dims)) return 2;
                if (bytes > 0 && !agrees(symbol, bytes - 1, dims)) return 3;
            }
        }
    }
    return 0;
}
