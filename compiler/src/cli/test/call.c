/* Calls a model for `symc test`: the call is on standard input, and its outputs go to standard output.
 *
 * Compiled with -include <prefix>.h and -DMODEL=<prefix>, -DN_INPUTS=…, -DN_OUTPUTS=…, -DN_DIMS=…. All numbers are 64-bit
 * integers in the machine's order. Standard input has, for each input, its rank, its sizes, its bytes and its data; then,
 * for each output, its rank and the bytes of an element. Standard output has the length of an error and its text. If the
 * length is 0, the sizes and the data of each output follow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)

enum { ALIGN = 64 };

static void *memory(int64_t count, size_t bytes) {
    char *start = malloc((size_t)count * bytes + 2 * ALIGN);
    if (start == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(4);
    }
    return start + (ALIGN - (uintptr_t)start % ALIGN);
}

static void read_bytes(void *data, size_t bytes) {
    if (bytes != 0 && fread(data, bytes, 1, stdin) != 1) {
        fprintf(stderr, "standard input ends early\n");
        exit(3);
    }
}

static int64_t read_int(void) {
    int64_t value = 0;
    read_bytes(&value, sizeof value);
    return value;
}

static void write_int(int64_t value) {
    fwrite(&value, sizeof value, 1, stdout);
}

/* Reports a call that the model refused. */
static int refuse(const char *function, int32_t code, const symshape_error *error) {
    char text[1024];
    const char *symbol = error->symbol_name ? error->symbol_name : "";
    const char *tensor = error->tensor_name ? error->tensor_name : "";
    const int length = snprintf(text, sizeof text, "%s returns %d: %s %s is %lld, allowed %lld to %lld; %s", function,
                                (int)code, tensor, symbol, (long long)error->value, (long long)error->lo,
                                (long long)error->hi, error->why ? error->why : "");
    write_int(length);
    fwrite(text, 1, strlen(text), stdout);
    return 0;
}

int main(void) {
    const int64_t *shapes[N_INPUTS + 1];
    const void *inputs[N_INPUTS + 1];
    void *outputs[N_OUTPUTS + 1];
    int64_t *sizes[N_OUTPUTS + 1];
    int64_t ranks[N_OUTPUTS + 1], element_bytes[N_OUTPUTS + 1];
    int64_t dims[N_DIMS + 1];
    symshape_error error = {0};
    const symshape_exec exec = {NULL, 1, SYMSHAPE_AUTO, NULL, &error};
#ifdef _WIN32
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
#endif
    for (int i = 0; i < N_INPUTS; i++) {
        const int64_t rank = read_int();
        int64_t *shape = memory(rank, sizeof *shape);
        read_bytes(shape, (size_t)rank * sizeof *shape);
        const int64_t bytes = read_int();
        void *data = memory(bytes, 1);
        read_bytes(data, (size_t)bytes);
        shapes[i] = shape;
        inputs[i] = data;
    }
    for (int i = 0; i < N_OUTPUTS; i++) {
        ranks[i] = read_int();
        element_bytes[i] = read_int();
        sizes[i] = memory(ranks[i], sizeof *sizes[i]);
    }

    int32_t code = NAME(MODEL, check)(shapes, dims, &error);
    if (code != 0) return refuse("check", code, &error);
    for (int i = 0; i < N_OUTPUTS; i++) {
        int64_t count = 1;
        NAME(MODEL, output_shape)((uint32_t)i, dims, sizes[i]);
        for (int64_t axis = 0; axis < ranks[i]; axis++) count *= sizes[i][axis];
        outputs[i] = memory(count, (size_t)element_bytes[i]);
    }
    code = NAME(MODEL, run)(inputs, outputs, dims, memory((int64_t)NAME(MODEL, arena_bytes)(dims), 1), &exec);
    if (code != 0) return refuse("run", code, &error);

    write_int(0);
    for (int i = 0; i < N_OUTPUTS; i++) {
        int64_t count = 1;
        /* Data-dependent sizes are known now. */
        NAME(MODEL, output_shape)((uint32_t)i, dims, sizes[i]);
        for (int64_t axis = 0; axis < ranks[i]; axis++) {
            write_int(sizes[i][axis]);
            count *= sizes[i][axis];
        }
        fwrite(outputs[i], (size_t)element_bytes[i], (size_t)count, stdout);
    }
    return 0;
}
