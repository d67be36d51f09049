/* What an object that was compiled with `--target npu` calls: transfers, and the simulated device. `model.h` is the
 * model's header. */
#include "model.h"

enum { TILE = 8, MOST = 256, MEMORY_BYTES = 1 << 20 };

/* Whether an address is one of the device's. */
static int is_inside(const symshape_call *call, const void *address) {
    return call->memory != NULL && (uintptr_t)address - (uintptr_t)call->memory < MEMORY_BYTES;
}

static uint64_t elems(const symshape_tensor *tensor) {
    uint64_t count = 1;
    for (uint32_t axis = 0; axis < tensor->rank; axis++) count *= (uint64_t)tensor->shape[axis];
    return count;
}

static int32_t copy(const symshape_call *call) {
    const float *from = call->inputs[0].data;
    float *to = call->outputs[0].data;
    const uint64_t count = elems(&call->inputs[0]);
    if (count != elems(&call->outputs[0])) return 1;
    for (uint64_t i = 0; i < count; i++) to[i] = from[i];
    return 0;
}

int32_t npu_load(const symshape_call *call) {
    return copy(call);
}

int32_t npu_store(const symshape_call *call) {
    return copy(call);
}

static uint32_t word(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void gemm(float *to, const float *a, const float *b, uint64_t depth, uint64_t rows, uint64_t tiles) {
    for (uint64_t t = 0; t < tiles; t++)
        for (uint64_t r = 0; r < rows; r++) {
            float *sums = to + (t * rows + r) * TILE;
            for (int lane = 0; lane < TILE; lane++) sums[lane] = 0;
            for (uint64_t k = 0; k < depth; k++) {
                const float x = a[(k / TILE * rows + r) * TILE + k % TILE];
                for (int lane = 0; lane < TILE; lane++) sums[lane] += x * b[(t * depth + k) * TILE + (uint64_t)lane];
            }
        }
}

/* Registers: what was loaded, then what each instruction computes, one behind the other in the scratch memory. */
int32_t npu_run(const symshape_call *call) {
    const unsigned char *code = call->attributes[0].data;
    const uint32_t loads = word(code), count = word(code + 4);
    const uint64_t rows = (uint64_t)call->outputs[0].shape[1];
    const float *registers[MOST];
    if (loads != call->n_inputs || loads + count > MOST) return 2;
    for (uint32_t i = 0; i < loads; i++) {
        registers[i] = call->inputs[i].data;
        if (!is_inside(call, registers[i])) return 4;
    }
    for (uint32_t i = 0; i < call->n_outputs; i++)
        if (!is_inside(call, call->outputs[i].data)) return 4;
    if (call->scratch != NULL && !is_inside(call, call->scratch)) return 4;
    float *to = call->scratch;
    for (uint32_t i = 0; i < count; i++) {
        const unsigned char *at = code + 8 + 20 * i;
        const uint32_t op = word(at), tiles = word(at + 4), b = word(at + 12);
        const float *x = registers[word(at + 8)], *y = registers[b];
        const uint64_t size = (uint64_t)tiles * rows * TILE;
        union {
            uint32_t bits;
            float value;
        } constant = {word(at + 16)};
        switch (op) {
        case 0: gemm(to, x, y, b < loads ? (uint64_t)call->inputs[b].shape[1] : rows, rows, tiles); break;
        case 1: for (uint64_t j = 0; j < size; j++) to[j] = x[j] + y[j]; break;
        case 2: for (uint64_t j = 0; j < size; j++) to[j] = x[j] * y[j]; break;
        case 3: for (uint64_t j = 0; j < size; j++) to[j] = x[j] > y[j] ? x[j] : y[j]; break;
        case 4: for (uint64_t j = 0; j < size; j++) to[j] = constant.value; break;
        default: return 3;
        }
        registers[loads + i] = to;
        to += size;
    }
    for (uint32_t i = 0; i < call->n_outputs; i++) {
        const float *from = registers[word(code + 8 + 20 * count + 4 * i)];
        float *output = call->outputs[i].data;
        const uint64_t size = elems(&call->outputs[i]);
        for (uint64_t j = 0; j < size; j++) output[j] = from[j];
    }
    return 0;
}
