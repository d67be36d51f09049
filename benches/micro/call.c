/* Calls the network on a Cortex-M of QEMU, and prints its results, its instructions and its stack.
 *
 * With `-icount shift=0`, an instruction takes a nanosecond. The timer of the core counts at 25 MHz, so one of its ticks is
 * 40 instructions. */
#include "cortex_m.h"
#include "input.h"
#include "kws.h"

enum { TICK = 40, MARGIN = 256, PAINTED = 4096, PAINT = 0x5a5a5a5a };

static void print(const char *name, int32_t value) {
    char digits[16];
    int at = 15;
    const int is_negative = value < 0;
    uint32_t rest = is_negative ? 0u - (uint32_t)value : (uint32_t)value;
    digits[at] = 0;
    digits[--at] = '\n';
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest != 0);
    if (is_negative) digits[--at] = '-';
    semihost(4, name);
    semihost(4, digits + at);
}

static int call(int8_t *y) {
    static const int64_t shape[4] = {1, 1, 49, 10};
    const int64_t *const shapes[1] = {shape};
    const void *const inputs[1] = {x};
    void *const outputs[1] = {y};
    int64_t dims[KWS_N_SYMBOLS + 1];
    kws_error error;
    const int code = kws_check(shapes, dims, &error);
    return code != 0 ? code : kws_run_static(inputs, outputs, dims, NULL);
}

static void start(void) {
    static int8_t y[12];
    volatile uint32_t *const timer = (volatile uint32_t *)0xE000E010;
    timer[1] = 0xFFFFFF;
    timer[2] = 0;
    timer[0] = 5;

    /* The frames of this function and its caller are above the painted words. */
    const uintptr_t top = (uintptr_t)stack_top;
    volatile uint32_t *const end = (volatile uint32_t *)(top - MARGIN);
    for (volatile uint32_t *word = end - PAINTED; word < end; word++) *word = PAINT;
    const uint32_t before = timer[2];
    const int code = call(y);
    const uint32_t after = timer[2];
    volatile uint32_t *used = end - PAINTED;
    while (used < end && *used == PAINT) used++;
    for (int i = 0; i < 12; i++) print("y ", y[i]);
    print("instructions ", (int32_t)(((before - after) & 0xFFFFFF) * TICK));
    print("stack ", (int32_t)(top - (uintptr_t)used));
    leave((uint32_t)code);
}
