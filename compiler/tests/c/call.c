/* Calls a model with what stands on standard input, and writes its outputs to standard output.
 *
 * Compiled with -DMODEL=<prefix> and -include <prefix>.h. Numbers are 64-bit integers in the machine's order. The input
 * has, for each of the model's inputs, its rank, its sizes, its bytes and as many bytes of data; behind them, for each
 * output, its bytes. The output has the result of the check, the arena's bytes, the result of the call, and the data. */
#include <stdio.h>
#include <stdlib.h>

#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)

enum { MOST = 16 };

static int64_t number(void) {
    int64_t value = 0;
    if (fread(&value, sizeof value, 1, stdin) != 1) exit(3);
    return value;
}

static void *memory(int64_t bytes) {
    void *start = aligned_alloc(64, (size_t)(bytes + 64) / 64 * 64);
    if (start == NULL) exit(4);
    return start;
}

static void put(int64_t value) {
    fwrite(&value, sizeof value, 1, stdout);
}

int main(void) {
    static int64_t shapes[MOST][8];
    const int64_t *shape_of[MOST];
    const void *inputs[MOST];
    void *outputs[MOST];
    int64_t bytes[MOST], dims[64];
    for (int i = 0; i < N_INPUTS; i++) {
        const int64_t rank = number();
        for (int64_t axis = 0; axis < rank; axis++) shapes[i][axis] = number();
        shape_of[i] = shapes[i];
        const int64_t size = number();
        void *data = memory(size);
        if (fread(data, 1, (size_t)size, stdin) != (size_t)size) return 3;
        inputs[i] = data;
    }
    for (int i = 0; i < N_OUTPUTS; i++) {
        bytes[i] = number();
        outputs[i] = memory(bytes[i]);
    }
    symshape_error error;
    const int32_t refused = NAME(MODEL, check)(shape_of, dims, &error);
    put(refused);
    if (refused != 0) return 0;
    const size_t arena = NAME(MODEL, arena_bytes)(dims);
    put((int64_t)arena);
    const symshape_exec exec = {NULL, 1, SYMSHAPE_AUTO, NULL, &error};
    put(NAME(MODEL, run)(inputs, outputs, dims, memory((int64_t)arena), &exec));
    for (int i = 0; i < N_OUTPUTS; i++) fwrite(outputs[i], 1, (size_t)bytes[i], stdout);
    return 0;
}
