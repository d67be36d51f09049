/* Calls the model `torn`, whose two partitions run at once and fail in different ways. One host begins with the first
 * partition, and another host with the last one. Prints the code of each call. Returns 0 if the error has that code,
 * and if a call without an error struct returns the same code. */
#include <stdio.h>

#include "torn.h"

static _Alignas(64) unsigned char arena[TORN_ARENA_MAX + 1];

int32_t torn_fails(const symshape_call *call) {
    return call->n_inputs == 1 ? 41 : 42;
}

static void forwards(void *host, int64_t count, symshape_task task, void *data) {
    (void)host;
    for (int64_t i = 0; i < count; i++) task(data, i, i + 1, 0);
}

static void backwards(void *host, int64_t count, symshape_task task, void *data) {
    (void)host;
    for (int64_t i = count; i-- > 0;) task(data, i, i + 1, 0);
}

int main(void) {
    static const float x[3] = {1, 2, 3};
    static const int64_t at[1] = {9};
    static float a[3], b[3];
    const int64_t x_shape[2] = {1, 3}, at_shape[1] = {1};
    const int64_t *const shapes[2] = {x_shape, at_shape};
    const void *const inputs[2] = {x, at};
    void *const outputs[2] = {a, b};
    void (*const hosts[2])(void *, int64_t, symshape_task, void *) = {forwards, backwards};
    int64_t dims[TORN_N_SYMBOLS];
    if (torn_check(shapes, dims, NULL)) return 2;
    for (int i = 0; i < 2; i++) {
        symshape_error error = {0};
        const symshape_exec with_error = {NULL, 2, SYMSHAPE_PARALLEL, hosts[i], &error};
        const symshape_exec without_error = {NULL, 2, SYMSHAPE_PARALLEL, hosts[i], NULL};
        const int32_t code = torn_run(inputs, outputs, dims, arena, &with_error);
        if (code == 0 || error.code != code || torn_run(inputs, outputs, dims, arena, &without_error) != code) return 3;
        if ((error.value == 41) != (code == SYMSHAPE_CALLEE_FAILED)) return 4;
        printf("%d\n", (int)code);
    }
    return 0;
}
