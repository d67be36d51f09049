/* Calls of a decoder in C source with states that it refuses, then with one that it accepts. */
#include "decoder.h"
#include <stdio.h>

static float x[2 * 16], bias[2 * 8], y[2 * 4 * 8];
static _Alignas(DECODER_STATE_ALIGN) unsigned char state[DECODER_STATE_MAX];
static decoder_error error;

/* A call with the state at `block`. */
static int32_t call(void *block, uint32_t n_states) {
    const int64_t length = decoder_state_length(state);
    const int64_t x_shape[3] = {1, 2, 16};
    const int64_t bias_shape[4] = {1, 1, 2, length + 2};
    const int64_t words[DECODER_N_STATE_WORDS] = {4, length, 1};
    const int64_t *const shapes[DECODER_N_INPUTS + 1] = {x_shape, bias_shape, words};
    int64_t dims[DECODER_N_SYMBOLS + DECODER_N_DATA_DEPENDENT];
    error.why = NULL;
    if (decoder_check(shapes, dims, &error) != 0) return error.code;
    const void *const inputs[DECODER_N_INPUTS] = {x, bias};
    void *const outputs[DECODER_N_OUTPUTS] = {y};
    void *const states[2] = {block, block};
    const decoder_exec exec = {.threads = 1, .error = &error};
    return decoder_run_stateful_static(inputs, outputs, states, n_states, dims, &exec);
}

static void refused(const char *name, void *block, uint32_t n_states) {
    const int32_t code = call(block, n_states);
    printf("%s: %d, %s\n", name, (int)code, error.why ? error.why : "");
}

int main(void) {
    int64_t dims[DECODER_N_SYMBOLS + DECODER_N_DATA_DEPENDENT] = {0};
    dims[DECODER_DIM_N] = 1;
    dims[DECODER_DIM_CAPACITY] = 4;
    decoder_state_init(state, dims);
    refused("none", state, 0);
    refused("two", state, 2);
    refused("null", NULL, 1);

    symshape_state_header *const header = (symshape_state_header *)(void *)state;
    header->magic ^= 1;
    refused("magic", state, 1);
    header->magic ^= 1;
    header->id ^= 1;
    refused("id", state, 1);
    header->id ^= 1;
    int64_t *const words = (int64_t *)(void *)(header + 1);
    words[0] = 5;
    refused("words", state, 1);
    words[0] = 4;
    header->bytes += 64;
    refused("bytes", state, 1);
    header->bytes -= 64;

    int32_t code = call(state, 1);
    printf("accepted: %d, length %d\n", (int)code, (int)decoder_state_length(state));
    if (call(state, 1) != 0) return 1;
    printf("full: %d\n", (int)call(state, 1));
    return 0;
}
