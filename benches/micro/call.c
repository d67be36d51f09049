/* Calls the network on a Cortex-M of QEMU, and prints its results, its instructions and its stack.
 *
 * With `-icount shift=0`, an instruction takes a nanosecond. The timer of the core counts at 25 MHz, so one of its ticks is
 * 40 instructions. The memory map is that of the tests, see cortex_m.ld. */
#include "input.h"
#include "kws.h"

enum { TICK = 40, MARGIN = 256, PAINTED = 4096, PAINT = 0x5a5a5a5a };

extern uint32_t stack_top[], data_from[], data_begin[], data_end[], bss_begin[], bss_end[];
void reset(void);

static int semihost(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void leave(uint32_t code) {
    const uint32_t block[2] = {0x20026, code};
    semihost(0x20, block);
    for (;;) {
    }
}

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

void reset(void) {
    const uint32_t *from = data_from;
    for (uint32_t *to = data_begin; to < data_end;) *to++ = *from++;
    for (uint32_t *to = bss_begin; to < bss_end;) *to++ = 0;
#ifdef __ARM_FP
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20;
#endif
    static int8_t y[12];
    volatile uint32_t *const timer = (volatile uint32_t *)0xE000E010;
    timer[1] = 0xFFFFFF;
    timer[2] = 0;
    timer[0] = 5;

    /* The frame of this function is above the painted words. */
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

static void fault(void) {
    leave(6);
}

static const struct {
    uint32_t *stack;
    void (*handlers[15])(void);
} vectors __attribute__((section(".vectors"), used)) = {
    stack_top,
    {reset, fault, fault, fault, fault, fault},
};
