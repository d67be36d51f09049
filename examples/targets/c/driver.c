/* Runs the model `towers` by an own driver: each of three threads takes any entry of the table that is ready. Counts the
 * calls inside the device `npu`, which takes one at a time. Compile with -pthread, and with npu.c in this folder. */
#include "model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define npu_load plain_load
#define npu_run plain_run
#define npu_store plain_store
#include "npu.c"
#undef npu_load
#undef npu_run
#undef npu_store

enum { ROWS = 9, THREADS = 3, FREE = 0, TAKEN = 1, DONE = 2 };

static _Alignas(64) unsigned char arena[TOWERS_ARENA_MAX + 64];
static _Alignas(64) unsigned char frame[TOWERS_FRAME_BYTES];
static atomic_int state[TOWERS_N_PARTITIONS];
static atomic_int left = TOWERS_N_PARTITIONS, failed, inside, most, calls;

/* Calls a function of the device, and counts. */
static int32_t counted(int32_t (*function)(const symshape_call *), const symshape_call *call) {
    const int now = atomic_fetch_add(&inside, 1) + 1;
    int known = atomic_load(&most);
    while (now > known && !atomic_compare_exchange_weak(&most, &known, now)) {
    }
    atomic_fetch_add(&calls, 1);
    const int32_t code = function(call);
    atomic_fetch_sub(&inside, 1);
    return code;
}

int32_t npu_load(const symshape_call *call) {
    return counted(plain_load, call);
}

int32_t npu_run(const symshape_call *call) {
    return counted(plain_run, call);
}

int32_t npu_store(const symshape_call *call) {
    return counted(plain_store, call);
}

static int is_ready(const symshape_partition *entry) {
    for (uint32_t k = 0; k < entry->n_after; k++)
        if (atomic_load(&state[entry->after[k]]) != DONE) return 0;
    return 1;
}

static void *work(void *unused) {
    (void)unused;
    while (atomic_load(&left) > 0 && !atomic_load(&failed))
        for (uint32_t i = 0; i < TOWERS_N_PARTITIONS; i++) {
            int expected = FREE;
            if (!is_ready(&towers_partitions[i])) continue;
            if (!atomic_compare_exchange_strong(&state[i], &expected, TAKEN)) continue;
            if (towers_partitions[i].run(frame) != 0) atomic_store(&failed, 1);
            atomic_store(&state[i], DONE);
            atomic_fetch_sub(&left, 1);
        }
    return NULL;
}

int main(void) {
    static float x[ROWS * 20], y[TOWERS_OUTPUT_Y_MAX_BYTES / sizeof(float)], again[sizeof y / sizeof(float)];
    for (int i = 0; i < ROWS * 20; i++) x[i] = (float)(i % 23) / 16 - 0.5f;
    const int64_t shape[2] = {ROWS, 20}, *shapes[1] = {shape};
    int64_t dims[TOWERS_N_SYMBOLS];
    towers_error error;
    if (towers_check(shapes, dims, &error) != 0) return 1;

    const void *const inputs[1] = {x};
    void *outputs[1] = {y};
    if (towers_begin(inputs, outputs, dims, arena, NULL, frame) != 0) return 2;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, NULL) != 0) return 3;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    if (atomic_load(&failed)) return 4;
    const int own_most = atomic_load(&most), own_calls = atomic_load(&calls);

    outputs[0] = again;
    if (towers_run(inputs, outputs, dims, arena, NULL) != 0) return 5;
    if (memcmp(y, again, sizeof y) != 0) return 6;

    for (uint32_t i = 0; i < TOWERS_N_PARTITIONS; i++)
        printf("%s %u\n", towers_partitions[i].target, (unsigned)towers_partitions[i].at_once);
    printf("calls %d, at once %d\n", own_calls, own_most);
    return 0;
}
