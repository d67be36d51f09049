/* Calls the model `blend` (y[N, 4] = softmax(x[N, 4]) + x, total[N]) through its header at two sizes, and once at a
 * size outside of the contract. Prints the results; returns 0 if all checks pass. */
#include <stdio.h>
#include <string.h>

#include "blend.h"
#include "blend.h" /* including it twice is harmless */

static _Alignas(64) unsigned char arena[BLEND_ARENA_MAX + 1];

static int call(int64_t n) {
    static float x[BLEND_N_MAX * 4], y[BLEND_N_MAX * 4], total[BLEND_N_MAX];
    const int64_t x_shape[2] = {n, 4};
    const int64_t *const shapes[BLEND_N_INPUTS] = {x_shape};
    int64_t dims[BLEND_N_SYMBOLS], shape[BLEND_OUTPUT_Y_RANK];
    blend_error error;
    blend_exec exec;
    memset(&exec, 0, sizeof exec);
    exec.threads = 1;
    exec.error = &error;

    if (blend_check(shapes, dims, &error)) {
        printf("refused: %s axis %u: %s = %lld, not in %lld..=%lld (%s)\n", error.tensor_name, error.axis,
               error.symbol_name, (long long)error.value, (long long)error.lo, (long long)error.hi, error.why);
        return error.code;
    }
    if (dims[BLEND_DIM_N] != n || blend_arena_bytes(dims) > BLEND_ARENA_MAX || blend_arena_max != BLEND_ARENA_MAX)
        return 100;
    if (blend_output_shape(BLEND_OUTPUT_Y, dims, shape) || shape[0] != n || shape[1] != 4) return 101;

    for (int64_t i = 0; i < n * 4; i++) x[i] = (float)(i % 7) - 3.0f;
    const void *const inputs[BLEND_N_INPUTS] = {x};
    void *const outputs[BLEND_N_OUTPUTS] = {y, total};
    if (blend_run(inputs, outputs, dims, arena, n % 2 ? &exec : NULL)) return 102;
    printf("N=%lld:", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) sum += y[i * 4 + k] - x[i * 4 + k];
        printf(" %.3f/%.1f", sum, total[i]);
    }
    printf("\n");
    return 0;
}

int main(void) {
    if (call(1) || call(3)) return 1;
    return call(BLEND_N_MAX + 1) == SYMSHAPE_OUT_OF_RANGE ? 0 : 2;
}
