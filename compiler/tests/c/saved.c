/* Checks that the functions of a model keep the registers that Windows promises to callers: rbx, rbp, rdi, rsi, r12 to
 * r15, and xmm6 to xmm15. The host's `parallel_for` checks its arguments, and changes the registers that a callee may
 * change.
 *
 * Compiled by GCC for Windows, with -include <prefix>.h, -DMODEL=<prefix> and -DUPPER=<PREFIX>. The model has one
 * input, of -DROWS times -DCOLUMNS elements, and one output, `y`. */
#include <malloc.h>
#include <stdio.h>
#include <string.h>

#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)

enum { N_INTS = 8, N_VECTORS = 10, THREADS = 4 };

/* The registers in the order of the functions below. */
typedef struct registers {
    uint64_t ints[N_INTS];
    uint64_t vectors[N_VECTORS][2];
} registers;

/* Sets the registers, calls `function` with five arguments, stores the registers, and returns the result. */
int32_t call_with_registers(void *function, const void *const *args, const registers *before, registers *after);

__asm__(
    ".text\n.globl call_with_registers\ncall_with_registers:\n"
    "push %rbx\npush %rbp\npush %rdi\npush %rsi\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "sub $0x108, %rsp\n"
    "movups %xmm6, 0x60(%rsp)\nmovups %xmm7, 0x70(%rsp)\nmovups %xmm8, 0x80(%rsp)\nmovups %xmm9, 0x90(%rsp)\n"
    "movups %xmm10, 0xa0(%rsp)\nmovups %xmm11, 0xb0(%rsp)\nmovups %xmm12, 0xc0(%rsp)\nmovups %xmm13, 0xd0(%rsp)\n"
    "movups %xmm14, 0xe0(%rsp)\nmovups %xmm15, 0xf0(%rsp)\n"
    "mov %r9, 0x50(%rsp)\nmov %rcx, %rax\nmov %rdx, %r10\nmov %r8, %r11\n"
    "mov 32(%r10), %rcx\nmov %rcx, 0x20(%rsp)\n"
    "mov 0(%r10), %rcx\nmov 8(%r10), %rdx\nmov 16(%r10), %r8\nmov 24(%r10), %r9\n"
    "mov 0(%r11), %rbx\nmov 8(%r11), %rbp\nmov 16(%r11), %rdi\nmov 24(%r11), %rsi\n"
    "mov 32(%r11), %r12\nmov 40(%r11), %r13\nmov 48(%r11), %r14\nmov 56(%r11), %r15\n"
    "movups 64(%r11), %xmm6\nmovups 80(%r11), %xmm7\nmovups 96(%r11), %xmm8\nmovups 112(%r11), %xmm9\n"
    "movups 128(%r11), %xmm10\nmovups 144(%r11), %xmm11\nmovups 160(%r11), %xmm12\nmovups 176(%r11), %xmm13\n"
    "movups 192(%r11), %xmm14\nmovups 208(%r11), %xmm15\n"
    "call *%rax\n"
    "mov 0x50(%rsp), %r11\n"
    "mov %rbx, 0(%r11)\nmov %rbp, 8(%r11)\nmov %rdi, 16(%r11)\nmov %rsi, 24(%r11)\n"
    "mov %r12, 32(%r11)\nmov %r13, 40(%r11)\nmov %r14, 48(%r11)\nmov %r15, 56(%r11)\n"
    "movups %xmm6, 64(%r11)\nmovups %xmm7, 80(%r11)\nmovups %xmm8, 96(%r11)\nmovups %xmm9, 112(%r11)\n"
    "movups %xmm10, 128(%r11)\nmovups %xmm11, 144(%r11)\nmovups %xmm12, 160(%r11)\nmovups %xmm13, 176(%r11)\n"
    "movups %xmm14, 192(%r11)\nmovups %xmm15, 208(%r11)\n"
    "movups 0x60(%rsp), %xmm6\nmovups 0x70(%rsp), %xmm7\nmovups 0x80(%rsp), %xmm8\nmovups 0x90(%rsp), %xmm9\n"
    "movups 0xa0(%rsp), %xmm10\nmovups 0xb0(%rsp), %xmm11\nmovups 0xc0(%rsp), %xmm12\nmovups 0xd0(%rsp), %xmm13\n"
    "movups 0xe0(%rsp), %xmm14\nmovups 0xf0(%rsp), %xmm15\n"
    "add $0x108, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rsi\npop %rdi\npop %rbp\npop %rbx\nret\n");

static int host, n_loops;

static void four_threads(void *data_of_host, int64_t count, symshape_task task, void *data) {
    n_loops += data_of_host == &host;
    for (int64_t i = 0; i < count; i++) {
        task(data, i, i + 1, (uint32_t)(i % THREADS));
        __asm__ volatile("pxor %%xmm0, %%xmm0\npxor %%xmm1, %%xmm1\npxor %%xmm2, %%xmm2\npxor %%xmm3, %%xmm3\n"
                         "pxor %%xmm4, %%xmm4\npxor %%xmm5, %%xmm5\nxor %%r8d, %%r8d\nxor %%r9d, %%r9d\n"
                         "xor %%r10d, %%r10d\nxor %%r11d, %%r11d\n" ::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "r8", "r9", "r10", "r11", "memory");
    }
}

static registers before, after;

static int32_t checked(const char *name, void *function, const void *const *args) {
    for (int i = 0; i < N_INTS; i++) before.ints[i] = 0x1234567800000000u + (uint64_t)i;
    for (int i = 0; i < N_VECTORS; i++)
        before.vectors[i][0] = 0xabcdef0100000000u + (uint64_t)i, before.vectors[i][1] = ~before.vectors[i][0];
    const int32_t code = call_with_registers(function, args, &before, &after);
    if (memcmp(&before, &after, sizeof before) != 0) {
        printf("%s changes a register\n", name);
        return -1;
    }
    return code;
}

int main(void) {
    const int64_t shape[2] = {ROWS, COLUMNS}, *const shapes[1] = {shape};
    int64_t dims[16];
    symshape_error error;
    const void *const check_args[5] = {shapes, dims, &error, NULL, NULL};
    if (checked("check", (void *)NAME(MODEL, check), check_args) != 0) return 1;
    float *x = _aligned_malloc(sizeof(float) * ROWS * COLUMNS, 64);
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i % 23) / 16 - 0.5f;
    const size_t arena_bytes = NAME(MODEL, arena_bytes)(dims);
    void *arena = _aligned_malloc(arena_bytes + 64, 64);
    void *results[2];
    for (int threads = 1; threads <= THREADS; threads += THREADS - 1) {
        void *y = results[threads > 1] = _aligned_malloc(NAME(UPPER, OUTPUT_Y_MAX_BYTES), 64);
        memset(y, 0, NAME(UPPER, OUTPUT_Y_MAX_BYTES));
        const void *const inputs[1] = {x};
        void *const outputs[1] = {y};
        const symshape_exec exec = {&host, (uint32_t)threads, SYMSHAPE_AUTO, four_threads, &error};
        const void *const args[5] = {inputs, outputs, dims, arena, &exec};
        if (checked("run", (void *)NAME(MODEL, run), args) != 0) return 2;
    }
    if (memcmp(results[0], results[1], NAME(UPPER, OUTPUT_Y_MAX_BYTES)) != 0) return 3;
    if (n_loops == 0) return 4;
    printf("kept\n");
    return 0;
}
