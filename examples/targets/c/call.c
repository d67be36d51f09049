/* Calls the model `net` at the number of rows given, on inputs 0, 1, … / 16, and prints its outputs. */
#include "model.h"
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    const int64_t rows = argc > 1 ? atoi(argv[1]) : 1;
    static float x[NET_N_MAX * 20], y[NET_OUTPUT_Y_MAX_BYTES / sizeof(float)];
    static _Alignas(64) unsigned char arena[NET_ARENA_MAX + 64];
    for (int64_t i = 0; i < rows * 20; i++) x[i] = (float)(i % 23) / 16 - 0.5f;
    const int64_t shape[2] = {rows, 20}, *shapes[1] = {shape};
    int64_t dims[NET_N_SYMBOLS];
    net_error error;
    if (net_check(shapes, dims, &error) != 0) return 1;
    const void *const inputs[1] = {x};
    void *const outputs[1] = {y};
    if (net_run(inputs, outputs, dims, arena, NULL) != 0) return 2;
    for (int64_t i = 0; i < rows * 10; i++) printf("%.9g\n", (double)y[i]);
    return 0;
}
