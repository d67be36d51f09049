/* Runs the partitions of the model `towers` by its own scheduler over the partition table: each of two threads takes any
 * free partition whose dependencies are done. Then runs them by the model's policies. Prints the table. Returns 0 if all
 * results have the bits of `towers_run` on one thread. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "towers.h"

enum { HEIGHT = 11, BATCH = 2, FREE = 0, TAKEN = 1, DONE = 2 };

static _Alignas(64) unsigned char arena[TOWERS_ARENA_MAX];
static _Alignas(64) unsigned char frame[TOWERS_FRAME_BYTES];
static atomic_int state[TOWERS_N_PARTITIONS];
static atomic_int left, failed;

static int is_ready(const symshape_partition *partition) {
    for (uint32_t k = 0; k < partition->n_after; k++)
        if (atomic_load(&state[partition->after[k]]) != DONE) return 0;
    return 1;
}

static void *work(void *unused) {
    (void)unused;
    while (atomic_load(&left) > 0 && !atomic_load(&failed)) {
        for (int i = TOWERS_N_PARTITIONS - 1; i >= 0; i--) {
            int expected = FREE;
            if (!is_ready(&towers_partitions[i]) || !atomic_compare_exchange_strong(&state[i], &expected, TAKEN)) continue;
            if (towers_partitions[i].run(frame) != 0) atomic_store(&failed, 1);
            atomic_store(&state[i], DONE);
            atomic_fetch_sub(&left, 1);
        }
    }
    return NULL;
}

/* A share of a parallel loop. */
struct share {
    symshape_task task;
    void *data;
    int64_t begin, end;
};

static void *work_share(void *share) {
    const struct share *const s = share;
    s->task(s->data, s->begin, s->end, 1);
    return NULL;
}

static void on_two_threads(void *host, int64_t count, symshape_task task, void *data) {
    struct share half = {task, data, count / 2, count};
    pthread_t other;
    ++*(int *)host;
    if (pthread_create(&other, NULL, work_share, &half)) abort();
    task(data, 0, count / 2, 0);
    pthread_join(other, NULL);
}

int main(void) {
    const int64_t shape[4] = {BATCH, 6, HEIGHT, 24};
    const int64_t *const shapes[1] = {shape};
    int64_t dims[TOWERS_N_SYMBOLS];
    towers_error error;
    if (towers_check(shapes, dims, &error)) return 2;
    static float x[BATCH * 6 * HEIGHT * 24];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)((i * 7919) % 1013) / 1013.0f - 0.5f;
    const size_t bytes = BATCH * 5 * HEIGHT * 24 * sizeof(float);
    float *const expected = malloc(bytes), *const got = malloc(bytes);
    const void *const inputs[1] = {x};
    void *outputs[1] = {expected};
    if (towers_run(inputs, outputs, dims, arena, NULL)) return 3;

    for (uint32_t i = 0; i < TOWERS_N_PARTITIONS; i++) {
        const symshape_partition *const p = &towers_partitions[i];
        size_t slice[2];
        if (towers_arena_slice(i, dims, slice) || slice[0] >= slice[1] || slice[1] > towers_arena_bytes(dims)) return 4;
        if (p->cost(dims, 1) <= 0 || p->n_symbols == 0 || p->n_symbols > TOWERS_N_SYMBOLS) return 5;
        printf("%u on %s, stage %u, after", i, p->target, p->stage);
        for (uint32_t k = 0; k < p->n_after; k++) printf(" %u", p->after[k]);
        printf("\n");
    }

    outputs[0] = got;
    memset(arena, 0x5a, sizeof arena);
    atomic_store(&left, TOWERS_N_PARTITIONS);
    if (towers_begin(inputs, outputs, dims, arena, NULL, frame)) return 6;
    pthread_t other;
    if (pthread_create(&other, NULL, work, NULL)) return 7;
    work(NULL);
    pthread_join(other, NULL);
    int same = !atomic_load(&failed) && memcmp(expected, got, bytes) == 0;

    for (uint32_t policy = SYMSHAPE_AUTO; policy <= SYMSHAPE_PARALLEL; policy++) {
        int calls = 0;
        const symshape_exec exec = {&calls, 2, policy, on_two_threads, &error};
        memset(arena, 0x5a, sizeof arena);
        memset(got, 0, bytes);
        if (towers_run(inputs, outputs, dims, arena, &exec)) return 9;
        same = same && memcmp(expected, got, bytes) == 0 && (policy != SYMSHAPE_PARALLEL || calls > 0);
    }
    free(expected);
    free(got);
    return same && TOWERS_ANY_ORDER ? 0 : 8;
}
