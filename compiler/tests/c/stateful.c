/* Runs consecutive calls of a model with one state, and writes the results and the content of the state after each.
 *
 * Compiled with -DMODEL=<prefix>, -DUPPER=<PREFIX> and -include <prefix>.h. All values are 64-bit integers in the
 * machine's order. Standard input has the dims of the state, then commands until 0:
 *
 *   1  a call: for each input its rank, its sizes, its size in bytes and its data; then the size of each output in bytes
 *   2  a reset
 *   3  a truncation, and the length
 *
 * For each command, standard output has its code, the data of the outputs if it is a call that succeeded, the size of the
 * state in bytes, and its content. */
#include <stdio.h>
#include <stdlib.h>

#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)

enum { MAX_TENSORS = 32, CALL = 1, RESET = 2, TRUNCATE = 3 };

static int64_t read_int(void) {
    int64_t value = 0;
    if (fread(&value, sizeof value, 1, stdin) != 1) exit(3);
    return value;
}

static void *memory(int64_t bytes) {
    void *start = aligned_alloc(64, (size_t)(bytes + 64) / 64 * 64);
    if (start == NULL) exit(4);
    for (int64_t at = 0; at < bytes; at++) ((unsigned char *)start)[at] = 0;
    return start;
}

static void write_int(int64_t value) {
    fwrite(&value, sizeof value, 1, stdout);
}

static int32_t call(void *state) {
    static int64_t shapes[MAX_TENSORS][8];
    const int64_t *shape_of[MAX_TENSORS];
    const void *inputs[MAX_TENSORS];
    void *outputs[MAX_TENSORS];
    int64_t bytes[MAX_TENSORS], dims[64];
    for (int i = 0; i < NAME(UPPER, N_INPUTS); i++) {
        const int64_t rank = read_int();
        for (int64_t axis = 0; axis < rank; axis++) shapes[i][axis] = read_int();
        shape_of[i] = shapes[i];
        const int64_t size = read_int();
        void *data = memory(size);
        if (fread(data, 1, (size_t)size, stdin) != (size_t)size) exit(3);
        inputs[i] = data;
    }
    shape_of[NAME(UPPER, N_INPUTS)] = NAME(MODEL, state_words)(state);
    for (int i = 0; i < NAME(UPPER, N_OUTPUTS); i++) {
        bytes[i] = read_int();
        outputs[i] = memory(bytes[i]);
    }
    symshape_error error;
    int32_t code = NAME(MODEL, check)(shape_of, dims, &error);
    if (code == 0) {
        void *const states[1] = {state};
        const symshape_exec exec = {NULL, 1, SYMSHAPE_AUTO, NULL, &error};
        void *const arena = memory((int64_t)NAME(MODEL, arena_bytes)(dims));
        code = NAME(MODEL, run_stateful)(inputs, outputs, states, 1, dims, arena, &exec);
    }
    write_int(code);
    for (int i = 0; i < NAME(UPPER, N_OUTPUTS) && code == 0; i++) fwrite(outputs[i], 1, (size_t)bytes[i], stdout);
    return code;
}

int main(void) {
    int64_t dims[64] = {0};
    for (int i = 0; i < NAME(UPPER, N_SYMBOLS); i++) dims[i] = read_int();
    const size_t bytes = NAME(MODEL, state_bytes)(dims);
    if (bytes > NAME(UPPER, STATE_MAX)) return 5;
    void *const state = memory((int64_t)bytes);
    NAME(MODEL, state_init)(state, dims);
    for (int64_t command = read_int(); command != 0; command = read_int()) {
        if (command == CALL) {
            (void)call(state);
        } else if (command == RESET) {
            NAME(MODEL, state_reset)(state);
            write_int(0);
        } else {
#ifdef HAS_ROWS
            write_int(NAME(MODEL, state_truncate)(state, read_int()));
#else
            return 6;
#endif
        }
        if (!NAME(MODEL, state_is_valid)(state, bytes)) return 7;
        write_int((int64_t)bytes);
        fwrite(state, 1, bytes, stdout);
    }
    return 0;
}
