/* The start of a program without an operating system on a Cortex-M, with the memory map of cortex_m.ld. The program
 * defines `start`, and reports to the debugger or emulator (semihosting). */
#include <stdint.h>

extern uint32_t stack_top[], data_from[], data_begin[], data_end[], bss_begin[], bss_end[];

static void start(void);

static int semihost(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

/* Ends the program with this exit code. */
static void leave(uint32_t code) {
    const uint32_t block[2] = {0x20026, code};
    semihost(0x20, block);
    for (;;) {
    }
}

static void reset(void) {
    const uint32_t *from = data_from;
    for (uint32_t *to = data_begin; to < data_end;) *to++ = *from++;
    for (uint32_t *to = bss_begin; to < bss_end;) *to++ = 0;
#ifdef __ARM_FP
    /* Enables the registers of floats. */
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20;
#endif
    start();
}

static void fault(void) {
    leave(6);
}

/* The initial stack pointer, and the handlers of reset and faults. */
static const struct {
    uint32_t *stack;
    void (*handlers[15])(void);
} vectors __attribute__((section(".vectors"), used)) = {
    stack_top,
    {reset, fault, fault, fault, fault, fault},
};
