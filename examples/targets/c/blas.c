/* What an object that was compiled with `--target blas` calls: the interface of the model on one side, the library's
 * kernel on the other. `model.h` is the model's header. */
#include "model.h"

/* The library. */
static void sgemm(int m, int n, int k, const float *a, const float *b, float *c) {
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            float sum = 0;
            for (int idx = 0; idx < k; idx++) sum += a[row * k + idx] * b[idx * n + column];
            c[row * n + column] = sum;
        }
}

int32_t blas_sgemm(const symshape_call *call) {
    const symshape_tensor *a = &call->inputs[0], *b = &call->inputs[1];
    if (a->shape[0] > INT32_MAX || a->shape[1] > INT32_MAX || b->shape[1] > INT32_MAX) return 1;
    sgemm((int)a->shape[0], (int)b->shape[1], (int)a->shape[1], a->data, b->data, call->outputs[0].data);
    return 0;
}
