/* Steps of a decoder with state: prints the length and the first output after each. */
#include "decoder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float x[2 * 4 * 16], bias[2 * 4 * 16], y[2 * 4 * 4 * 8];
static void *arena;

static int32_t step(void *state, int64_t steps) {
    const int64_t length = decoder_state_length(state);
    for (int64_t at = 0; at < steps * 16; at++) x[at] = (float)((7 * (at + 5 * length)) % 11) * 0.1f - 0.5f;
    const int64_t x_shape[3] = {1, steps, 16};
    const int64_t bias_shape[4] = {1, 1, steps, length + steps};
    const int64_t *const shapes[DECODER_N_INPUTS + 1] = {x_shape, bias_shape, decoder_state_words(state)};
    int64_t dims[DECODER_N_SYMBOLS + DECODER_N_DATA_DEPENDENT];
    decoder_error error;
    if (decoder_check(shapes, dims, &error) != 0) return error.code;
    const void *const inputs[DECODER_N_INPUTS] = {x, bias};
    void *const outputs[DECODER_N_OUTPUTS] = {y};
    void *const states[1] = {state};
    return decoder_run_stateful(inputs, outputs, states, 1, dims, arena, NULL);
}

/* One row for each of two states, in one call. Each has the input that it would have alone. */
static int32_t step_both(void *const *states, decoder_error *error) {
    int64_t words[DECODER_N_STATE_WORDS], longest = 0;
    for (int row = 0; row < 2; row++) {
        const int64_t length = decoder_state_length(states[row]);
        if (longest < length) longest = length;
        for (int64_t at = 0; at < 16; at++) x[16 * row + at] = (float)((7 * (at + 5 * length)) % 11) * 0.1f - 0.5f;
    }
    const int64_t x_shape[3] = {2, 1, 16};
    const int64_t bias_shape[4] = {2, 1, 1, longest + 1};
    const int64_t *const own = decoder_states_words((const void *const *)states, 2, words);
    const int64_t *const shapes[DECODER_N_INPUTS + 1] = {x_shape, bias_shape, own};
    int64_t dims[DECODER_N_SYMBOLS + DECODER_N_DATA_DEPENDENT];
    if (decoder_check(shapes, dims, error) != 0) return error->code;
    const void *const inputs[DECODER_N_INPUTS] = {x, bias};
    void *const outputs[DECODER_N_OUTPUTS] = {y};
    const decoder_exec exec = {.threads = 1, .error = error};
    return decoder_run_stateful(inputs, outputs, states, 2, dims, arena, &exec);
}

static void print_refusal(const char *what, int32_t code, const decoder_error *error) {
    printf("%s: %d, state %d: %s\n", what, (int)code, (int)error->axis, error->why ? error->why : "");
}

int main(void) {
    int64_t dims[DECODER_N_SYMBOLS + DECODER_N_DATA_DEPENDENT] = {0};
    dims[DECODER_DIM_N] = 1;
    dims[DECODER_DIM_CAPACITY] = 9;
    const size_t bytes = decoder_state_bytes(dims);
    if (bytes > DECODER_STATE_MAX) return 1;
    void *const state = aligned_alloc(DECODER_STATE_ALIGN, bytes);
    void *const fork = aligned_alloc(DECODER_STATE_ALIGN, bytes);
    arena = aligned_alloc(64, DECODER_ARENA_MAX);
    if (!state || !fork || !arena) return 1;
    decoder_state_init(state, dims);

    const int64_t sizes[3] = {4, 1, 3};
    for (int at = 0; at < 3; at++) {
        if (step(state, sizes[at]) != 0) return 1;
        printf("length %d: %.4f\n", (int)decoder_state_length(state), y[0]);
    }
    printf("full: %d\n", (int)step(state, 2));
    memcpy(fork, state, bytes);
    printf("fork length %d\n", (int)decoder_state_length(fork));
    if (decoder_state_truncate(fork, 9) == 0 || decoder_state_truncate(fork, 5) != 0) return 1;
    printf("truncated to %d\n", (int)decoder_state_length(fork));
    if (step(fork, 3) != 0) return 1;
    printf("length %d: %.4f\n", (int)decoder_state_length(fork), y[0]);

    decoder_state_truncate(state, 5);
    decoder_state_truncate(fork, 4);
    decoder_error error;
    void *both[2] = {state, fork};
    if (step_both(both, &error) != 0) return 1;
    printf("lengths %d and %d", (int)decoder_state_length(state), (int)decoder_state_length(fork));
    printf(": %.4f and %.4f\n", y[0], y[32]);
    both[1] = state;
    print_refusal("twice", step_both(both, &error), &error);
    both[1] = fork;
    ((symshape_state_header *)fork)->bytes -= 64;
    print_refusal("damaged", step_both(both, &error), &error);
    ((symshape_state_header *)fork)->bytes += 64;

    ((symshape_state_header *)fork)->id ^= 1;
    decoder_state_truncate(fork, 0);
    printf("foreign: %d\n", (int)step(fork, 1));
    printf("valid %d, cut %d\n", decoder_state_is_valid(state, bytes), decoder_state_is_valid(state, bytes - 64));
    printf("capacity for the bytes: %d\n", (int)decoder_state_max_capacity(bytes, dims));
    free(state);
    free(fork);
    free(arena);
    return 0;
}
