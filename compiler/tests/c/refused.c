/* Loads an artefact into a process that may not request tile registers, and calls it.
 *
 * refused FILE PREFIX refuse|allow: with `refuse`, a seccomp filter answers arch_prctl(ARCH_REQ_XCOMP_PERM) with EPERM before
 * the file is loaded. Calls PREFIX_run with N = 3 rows of 40 elements. Prints its return code, whether it used tile
 * registers, and the bits of the elements of its output. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REQUEST = 0x1023, ROWS = 3, IN = 40, OUT = 40 };

static int refuse(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, REQUEST, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static void *find(void *library, const char *prefix, const char *name) {
    char symbol[256];
    snprintf(symbol, sizeof symbol, "%s_%s", prefix, name);
    void *found = dlsym(library, symbol);
    if (found == NULL) {
        fprintf(stderr, "no %s\n", symbol);
        exit(3);
    }
    return found;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    if (strcmp(argv[3], "refuse") == 0) {
        if (refuse() != 0) {
            perror("seccomp");
            return 4;
        }
        errno = 0;
        if (syscall(SYS_arch_prctl, REQUEST, 18) != -1 || errno != EPERM) return 5;
    }
    void *library = dlopen(argv[1], RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    int32_t (*uses_tiles)(void);
    int32_t (*run)(const void *const *, void *const *, const int64_t *, void *, const void *);
    size_t (*arena_bytes)(const int64_t *);
    *(void **)&uses_tiles = find(library, argv[2], "uses_tiles");
    *(void **)&run = find(library, argv[2], "run");
    *(void **)&arena_bytes = find(library, argv[2], "arena_bytes");
    static float x[ROWS * IN], y[ROWS * OUT];
    for (int i = 0; i < ROWS * IN; i++) x[i] = (float)(i * 7919 % 1000) / 512.0f - 1.0f;
    const int64_t dims[] = {ROWS};
    const void *inputs[] = {x};
    void *outputs[] = {y};
    void *arena = aligned_alloc(64, (arena_bytes(dims) + 127) / 64 * 64);
    printf("%d %d\n", (int)run(inputs, outputs, dims, arena, NULL), (int)uses_tiles());
    for (int i = 0; i < ROWS * OUT; i++) {
        uint32_t bits;
        memcpy(&bits, &y[i], sizeof bits);
        printf("%08x\n", (unsigned)bits);
    }
    return 0;
}
