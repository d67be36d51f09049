/* A program without a C library. It calls the model of case.h, and compares the results with those in case.h.
 *
 * On x86-64 it is a process without any library, which ends with the exit code. On aarch64 it is the first code of
 * QEMU's machine `virt`, and reports the exit code to the emulator (semihosting). */
#include "case.h"
#ifdef CASE_ARENA
static _Alignas(64) unsigned char arena[CASE_ARENA];

static int32_t run_in_arena(const void *const *inputs, void *const *outputs, int64_t *dims, const symshape_exec *exec) {
    return CASE_MODEL_RUN(inputs, outputs, dims, arena, exec);
}
#define CASE_RUN run_in_arena
#endif
#include "case_call.h"

void begin(void);

#if defined(__x86_64__)
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-64, %rsp\n call begin\n");

static void leave(uint64_t code) {
    __asm__ volatile("syscall" : : "a"(60), "D"(code) : "rcx", "r11", "memory");
}
#elif defined(__aarch64__)
/* The first gigabyte is devices, the second one is memory. Vector loads need memory of the type `normal`, which only
 * translated addresses have. */
static _Alignas(4096) uint64_t table[512] = {0x405, 0x40000000 | 0x701};

__asm__(".globl _start\n"
        "_start: mov x0, #(3 << 20)\n msr cpacr_el1, x0\n isb\n"
        " ldr x0, =stack_top\n mov sp, x0\n b begin\n");

static void translate_addresses(void) {
    const uint64_t memory_types = 0x00ff, translation = 25 | (UINT64_C(1) << 23) | (UINT64_C(0x3) << 12) | 0x500;
    __asm__ volatile("msr mair_el1, %0\n msr tcr_el1, %1\n msr ttbr0_el1, %2\n dsb sy\n isb" : :
                     "r"(memory_types), "r"(translation), "r"(table) : "memory");
    uint64_t control;
    __asm__ volatile("mrs %0, sctlr_el1" : "=r"(control));
    __asm__ volatile("msr sctlr_el1, %0\n isb" : : "r"((control | 0x1005) & ~UINT64_C(2)) : "memory");
}

static void leave(uint64_t code) {
    const uint64_t block[2] = {0x20026, code};
    register uint64_t operation __asm__("x0") = 0x20;
    register const uint64_t *argument __asm__("x1") = block;
    __asm__ volatile("hlt 0xf000" : : "r"(operation), "r"(argument) : "memory");
}
#endif

void begin(void) {
#if defined(__aarch64__)
    translate_addresses();
#endif
    leave((uint64_t)differs());
    for (;;) {
    }
}
