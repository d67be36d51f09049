/* Calls a model with the call on standard input, and writes its outputs to standard output.
 *
 * Compiled with -DMODEL=<prefix> and -include <prefix>.h. All values are 64-bit integers in the machine's order.
 * Standard input has, for each input of the model, its rank, its sizes, its size in bytes, and its data; then, for each
 * output, its size in bytes. Standard output has the result of the check, the arena's size in bytes, the result of the
 * call, and the data of the outputs. */
#include <stdio.h>
#include <stdlib.h>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#include <malloc.h>
#endif

#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)

enum { MAX_TENSORS = 32 };

static int64_t read_int(void) {
    int64_t value = 0;
    if (fread(&value, sizeof value, 1, stdin) != 1) exit(3);
    return value;
}

static void *memory(int64_t bytes) {
    const size_t size = (size_t)(bytes + 64) / 64 * 64;
#ifdef _WIN32
    void *start = _aligned_malloc(size, 64);
#else
    void *start = aligned_alloc(64, size);
#endif
    if (start == NULL) exit(4);
    return start;
}

static void write_int(int64_t value) {
    fwrite(&value, sizeof value, 1, stdout);
}

int main(void) {
#ifdef _WIN32
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
#endif
    static int64_t shapes[MAX_TENSORS][8];
    const int64_t *shape_of[MAX_TENSORS];
    const void *inputs[MAX_TENSORS];
    void *outputs[MAX_TENSORS];
    int64_t bytes[MAX_TENSORS], dims[64];
    for (int i = 0; i < N_INPUTS; i++) {
        const int64_t rank = read_int();
        for (int64_t axis = 0; axis < rank; axis++) shapes[i][axis] = read_int();
        shape_of[i] = shapes[i];
        const int64_t size = read_int();
        void *data = memory(size);
        if (fread(data, 1, (size_t)size, stdin) != (size_t)size) return 3;
        inputs[i] = data;
    }
    for (int i = 0; i < N_OUTPUTS; i++) {
        bytes[i] = read_int();
        outputs[i] = memory(bytes[i]);
    }
    symshape_error error;
    const int32_t refused = NAME(MODEL, check)(shape_of, dims, &error);
    write_int(refused);
    if (refused != 0) return 0;
    const size_t arena = NAME(MODEL, arena_bytes)(dims);
    write_int((int64_t)arena);
    const symshape_exec exec = {NULL, 1, SYMSHAPE_AUTO, NULL, &error};
    write_int(NAME(MODEL, run)(inputs, outputs, dims, memory((int64_t)arena), &exec));
    for (int i = 0; i < N_OUTPUTS; i++) fwrite(outputs[i], 1, (size_t)bytes[i], stdout);
    return 0;
}
