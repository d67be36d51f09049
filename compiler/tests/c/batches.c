/* Serves requests of mixed shapes by a model's header: groups of requests, and blocks of rows. Each result must have
 * the bits that it has alone. Returns 0 if all do.
 *
 * Compiled with -DMODEL=<prefix> and -include <prefix>.h, for a model of x[N, S, 8], shift[8] with the outputs
 * y[N, S, 8] and top[N], for N in 1..12 and S in 1..9. */
#include <stdlib.h>
#include <string.h>

#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)

enum { WIDTH = 8, MAX_N = 12, MAX_S = 9, COUNT = 60, ELEMS = MAX_N * MAX_S * WIDTH };

/* A request with its memory. */
struct item {
    int64_t x_shape[3], shift_shape[1];
    const int64_t *shapes[2];
    float x[ELEMS], y[ELEMS], top[MAX_N];
    float y_alone[ELEMS], top_alone[MAX_N];
    const void *inputs[2];
    void *outputs[2];
};

static struct item items[COUNT];
static symshape_request requests[COUNT];
static float shift[WIDTH];
static size_t arena_max, largest_alone, n_done;

static uint32_t random_below(uint32_t bound) {
    static uint32_t state = 12345;
    state = state * 1664525u + 1013904223u;
    return (state >> 10) % bound;
}

static void *memory(size_t bytes) {
    void *start = NULL;
    if (posix_memalign(&start, 64, bytes + 64) != 0) exit(20);
    return start;
}

static void fill(size_t at, int64_t rows, int64_t length) {
    struct item *item = &items[at];
    item->x_shape[0] = rows, item->x_shape[1] = length, item->x_shape[2] = WIDTH;
    item->shift_shape[0] = WIDTH;
    item->shapes[0] = item->x_shape, item->shapes[1] = item->shift_shape;
    for (int i = 0; i < ELEMS; i++) item->x[i] = (float)random_below(2000) / 500.0f - 2.0f;
    item->inputs[0] = item->x, item->inputs[1] = shift;
    item->outputs[0] = item->y_alone, item->outputs[1] = item->top_alone;
    requests[at].shapes = item->shapes, requests[at].inputs = item->inputs, requests[at].outputs = item->outputs;
}

/* Runs a request alone; later runs write to other memory. */
static int run_alone(size_t at, void *arena) {
    int64_t dims[2];
    symshape_error error;
    struct item *item = &items[at];
    if (NAME(MODEL, check)(item->shapes, dims, &error) != SYMSHAPE_OK) return 1;
    if (NAME(MODEL, arena_bytes)(dims) > largest_alone) largest_alone = NAME(MODEL, arena_bytes)(dims);
    if (NAME(MODEL, run)(item->inputs, item->outputs, dims, arena, NULL) != SYMSHAPE_OK) return 2;
    item->outputs[0] = item->y, item->outputs[1] = item->top;
    memset(item->y, 0x7f, sizeof item->y);
    memset(item->top, 0x7f, sizeof item->top);
    return 0;
}

/* Whether a request has the results that it had alone, and nothing beyond them. */
static int differs(size_t at) {
    const struct item *item = &items[at];
    const size_t rows = (size_t)item->x_shape[0], elems = rows * (size_t)item->x_shape[1] * WIDTH;
    unsigned char beyond = 0x7f;
    if (memcmp(item->y, item->y_alone, elems * sizeof(float)) != 0) return 1;
    if (memcmp(item->top, item->top_alone, rows * sizeof(float)) != 0) return 2;
    if (elems < ELEMS && memcmp((const unsigned char *)&item->y[elems], &beyond, 1) != 0) return 3;
    return 0;
}

/* Serves all requests in groups of at most `max_rows` rows and `budget` bytes. Returns the number of calls. */
static int serve(int64_t max_rows, size_t budget, void *arena, void *staging, int *n_calls) {
    symshape_request queue[COUNT];
    size_t group[COUNT], waiting = COUNT;
    int64_t dims[2];
    memcpy(queue, requests, sizeof queue);
    *n_calls = 0;
    while (waiting > 0) {
        const size_t n = NAME(MODEL, group)(queue, waiting, max_rows, budget, group, dims);
        const symshape_request *first = &queue[0];
        if (n == 0 || group[0] != 0) return 1;
        if (dims[ROWS] > max_rows || NAME(MODEL, arena_bytes)(dims) > budget) return 2;
        for (size_t i = 1; i < n; i++) {
            if (queue[group[i]].shapes[0][1] != first->shapes[0][1] || group[i] <= group[i - 1]) return 3;
        }
        if (NAME(MODEL, staging_bytes)(queue, group, n, dims) > STAGING) return 4;
        if (NAME(MODEL, run_group)(queue, group, n, dims, arena, staging, NULL) != SYMSHAPE_OK) return 5;
        ++*n_calls;

        /* The requests that were not in the group stay in their order. */
        size_t left = 0, next = 0;
        for (size_t i = 0; i < waiting; i++) {
            if (next < n && group[next] == i) next++;
            else queue[left++] = queue[i];
        }
        waiting = left;
    }
    return 0;
}

static void count_block(void *data, size_t block) {
    if (block == n_done) n_done++;
    *(size_t *)data = block;
}

/* Blocks of one batch, in memory that is not adjacent. */
static int run_in_blocks(void *arena) {
    symshape_error error;
    const symshape_exec exec = {NULL, 1, SYMSHAPE_AUTO, NULL, &error};
    size_t last = 0;
    n_done = 0;
    if (NAME(MODEL, run_blocks)(requests, COUNT, arena, arena_max, &exec, count_block, &last) != SYMSHAPE_OK) return 1;
    if (n_done != COUNT || last != COUNT - 1) return 2;
    for (size_t i = 0; i < COUNT; i++) {
        if (differs(i)) return 3;
    }

    /* A bad block is found before the first one runs. */
    items[COUNT - 1].x_shape[0] = MAX_N + 1;
    n_done = 0;
    const int32_t code = NAME(MODEL, run_blocks)(requests, COUNT, arena, arena_max, &exec, count_block, &last);
    items[COUNT - 1].x_shape[0] = 1;
    if (code != SYMSHAPE_OUT_OF_RANGE || n_done != 0 || error.value != MAX_N + 1) return 4;
    if (NAME(MODEL, run_blocks)(requests, COUNT, arena, 0, &exec, NULL, NULL) == SYMSHAPE_OK && arena_max > 0) return 5;
    return NAME(MODEL, run_blocks)(requests, 0, arena, 0, NULL, NULL, NULL);
}

/* Requests that must not wait for a call. */
static int refuses(void) {
    symshape_error error;
    int64_t dims[2];
    size_t group[1];
    struct item *item = &items[0];
    const int64_t rows = item->x_shape[0];
    if (NAME(MODEL, accept)(&requests[0], MAX_N, arena_max, &error) != SYMSHAPE_OK) return 1;
    item->x_shape[0] = 0;
    if (NAME(MODEL, accept)(&requests[0], MAX_N, arena_max, &error) == SYMSHAPE_OK || error.lo != 1) return 2;
    if (NAME(MODEL, group)(requests, 1, MAX_N, arena_max, group, dims) != 0) return 3;
    item->x_shape[0] = 5;
    if (NAME(MODEL, accept)(&requests[0], 4, arena_max, &error) == SYMSHAPE_OK || error.hi != 4) return 4;
    if (strcmp(error.symbol_name, "N") != 0 || error.value != 5 || error.why == NULL) return 5;
    item->x_shape[0] = rows;
    item->x_shape[2] = WIDTH + 1;
    if (NAME(MODEL, accept)(&requests[0], MAX_N, arena_max, &error) == SYMSHAPE_OK || error.axis != 2) return 6;
    item->x_shape[2] = WIDTH;
    if (arena_max > 0 && NAME(MODEL, accept)(&requests[0], MAX_N, 0, &error) == SYMSHAPE_OK) return 7;
    return NAME(MODEL, group)(requests, 0, MAX_N, arena_max, group, dims) != 0;
}

int main(void) {
    arena_max = NAME(MODEL, arena_max);
    void *arena = memory(arena_max), *staging = memory(STAGING);
    const int64_t limits[4] = {12, 7, 4, 4};
    for (int i = 0; i < WIDTH; i++) shift[i] = (float)i / 4.0f - 1.0f;
    for (size_t i = 0; i < COUNT; i++) {
        fill(i, 1 + random_below(4), 1 + random_below(4) * 2);
        if (run_alone(i, arena) != 0) return 1;
    }
    for (int i = 0; i < 4; i++) {
        int n_calls;
        const size_t budget = i % 2 == 0 ? arena_max : largest_alone;
        const int code = serve(limits[i], budget, arena, staging, &n_calls);
        if (code != 0) return 10 * code + 3;
        if (n_calls >= COUNT) return 4;
        for (size_t at = 0; at < COUNT; at++) {
            if (differs(at)) return 5;
            memset(items[at].y, 0x7f, sizeof items[at].y);
            memset(items[at].top, 0x7f, sizeof items[at].top);
        }
    }
    if (run_in_blocks(arena) != 0) return 6;
    if (refuses() != 0) return 7;
    free(arena);
    free(staging);
    return 0;
}
