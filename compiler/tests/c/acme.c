/* The functions that the models of custom_ops.rs call; `acme.h` is a header with the interface. */
#include "acme.h"

static uint64_t elems(const symshape_tensor *tensor) {
    uint64_t count = 1;
    for (uint32_t k = 0; k < tensor->rank; k++) count *= (uint64_t)tensor->shape[k];
    return count;
}

/* y = alpha * x / (1 + |x|); fails if an element is 1000. */
int32_t acme_soft(const symshape_call *call) {
    if (call->n_inputs != 1 || call->n_outputs != 1 || call->n_attributes != 1) return 100;
    const symshape_tensor *x = &call->inputs[0], *y = &call->outputs[0];
    const float alpha = *(const float *)call->attributes[0].data;
    if (x->dtype != SYMSHAPE_F32 || y->rank != x->rank || call->attributes[0].kind != SYMSHAPE_FLOATS) return 101;
    const uint64_t count = elems(x);
    if (elems(y) != count) return 102;
    for (uint64_t i = 0; i < count; i++) {
        const float value = ((const float *)x->data)[i];
        if (value == 1000.0f) return 7;
        ((float *)y->data)[i] = alpha * value / (1.0f + (value < 0 ? -value : value));
    }
    return 0;
}

/* The first k elements of each row, reversed, and their indices. Each row is copied to the scratch memory first. */
int32_t acme_pick(const symshape_call *call) {
    if (call->n_inputs != 1 || call->n_outputs != 2) return 100;
    const symshape_tensor *x = &call->inputs[0], *y = &call->outputs[0], *at = &call->outputs[1];
    const int64_t k = *(const int64_t *)call->attributes[0].data, row = x->shape[x->rank - 1];
    if (y->shape[y->rank - 1] != k || at->dtype != SYMSHAPE_I64 || call->scratch_bytes != (uint64_t)(4 * row)) return 101;
    float *copy = call->scratch;
    for (uint64_t r = 0; r < elems(x) / (uint64_t)row; r++) {
        for (int64_t i = 0; i < row; i++) copy[i] = ((const float *)x->data)[r * (uint64_t)row + (uint64_t)i];
        for (int64_t i = 0; i < k; i++) {
            ((float *)y->data)[r * (uint64_t)k + (uint64_t)i] = copy[k - 1 - i];
            ((int64_t *)at->data)[r * (uint64_t)k + (uint64_t)i] = k - 1 - i;
        }
    }
    return 0;
}
