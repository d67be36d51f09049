/* Calls the model `perceptron` with weights from the file that the argument names: first with addresses and weights that
 * the call refuses, and prints the errors. Then prints every sixteenth result as hexadecimal bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perceptron.h"

static _Alignas(64) unsigned char arena[PERCEPTRON_ARENA_MAX + 1];

static void print_refusal(const char *name, int32_t code, const perceptron_error *error) {
    printf("%s: %d %s: %s\n", name, (int)code, error->tensor_name, error->why);
}

int main(int argc, char **argv) {
    static float x[2 * 70], y[2 * 33];
    void *weights = aligned_alloc(64, (PERCEPTRON_WEIGHTS_BYTES + 63) / 64 * 64);
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!file || !weights || fread(weights, 1, PERCEPTRON_WEIGHTS_BYTES, file) != PERCEPTRON_WEIGHTS_BYTES) return 1;
    fclose(file);
    if (!perceptron_has_weights(weights, PERCEPTRON_WEIGHTS_BYTES)) return 2;
    if (perceptron_has_weights(weights, PERCEPTRON_WEIGHTS_BYTES - 1)) return 3;
    if (perceptron_has_weights((char *)weights + 4, PERCEPTRON_WEIGHTS_BYTES) || perceptron_has_weights(NULL, 0)) return 4;

    const int64_t shape[2] = {2, 70};
    const int64_t *const shapes[1] = {shape};
    int64_t dims[PERCEPTRON_N_SYMBOLS];
    perceptron_error error;
    perceptron_exec exec;
    memset(&exec, 0, sizeof exec);
    exec.threads = 1;
    exec.error = &error;
    if (perceptron_check(shapes, dims, &error)) return 5;
    for (int i = 0; i < 140; i++) x[i] = 0.25f;

    const void *inputs[PERCEPTRON_N_INPUTS + PERCEPTRON_HAS_WEIGHTS] = {x, NULL};
    void *const outputs[1] = {y};
    print_refusal("missing", perceptron_run(inputs, outputs, dims, arena, &exec), &error);
    /* Weights in the wrong place, without their magic number, and of another artefact. */
    inputs[PERCEPTRON_N_INPUTS] = (char *)weights + 4;
    print_refusal("misaligned", perceptron_run(inputs, outputs, dims, arena, &exec), &error);
    inputs[PERCEPTRON_N_INPUTS] = weights;
    static const struct { const char *name; size_t offset; } changes[3] = {{"magic", 7}, {"first", 32}, {"last", 63}};
    for (int i = 0; i < 3; i++) {
        ((unsigned char *)weights)[changes[i].offset] ^= 1;
        print_refusal(changes[i].name, perceptron_run(inputs, outputs, dims, arena, &exec), &error);
        ((unsigned char *)weights)[changes[i].offset] ^= 1;
    }
    if (perceptron_run(inputs, outputs, dims, arena, &exec)) return 6;
    for (int i = 0; i < 66; i += 16) {
        uint32_t bits;
        memcpy(&bits, &y[i], 4);
        printf("%s%08x", i ? " " : "", (unsigned)bits);
    }
    printf("\n");
    free(weights);
    return 0;
}
