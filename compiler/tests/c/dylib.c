/* The functions of a model in a dynamic library of macOS, on a Linux system of the same architecture: a loader that
 * follows the commands of the file, as far as libraries without imports need it. It maps the segments at a new address,
 * moves the absolute addresses, and searches the tree of exports.
 *
 * Compiled with -DMODEL=<prefix>, -include <prefix>.h and -DLIBRARY="<path>", and linked with call.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define JOIN(a, b) a##_##b
#define NAME(a, b) JOIN(a, b)
#define TEXT_OF(a) #a
#define TEXT(a) TEXT_OF(a)

enum { SEGMENT = 0x19, LOADER_TABLES = 0x22, MAX_SEGMENTS = 8, MAX_BYTES = 1 << 30, PAGE = 1 << 14 };

static void stop(const char *why) {
    fprintf(stderr, "%s: %s\n", LIBRARY, why);
    exit(9);
}

static uint32_t word(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t long_word(const unsigned char *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t groups(const unsigned char **at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        const unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
}

static unsigned char *file, *image;
static const unsigned char *tables;

static void read_file(void) {
    FILE *stream = fopen(LIBRARY, "rb");
    if (stream == NULL) stop("not found");
    file = malloc(MAX_BYTES);
    if (file == NULL || fread(file, 1, MAX_BYTES, stream) == 0) stop("not read");
    fclose(stream);
}

/* Adds the distance of the image from the addresses of the file to the absolute addresses. */
static void move(const uint64_t *segments, uint64_t base) {
    const unsigned char *at = file + word(tables + 8), *const end = at + word(tables + 12);
    unsigned char *place = NULL;
    while (at < end) {
        const unsigned char operation = *at & 0xf0, operand = *at & 0x0f;
        at++;
        if (operation == 0x10) {
            if (operand != 1) stop("unknown kind of address");
        } else if (operation == 0x20) {
            place = image + segments[operand] - base + groups(&at);
        } else if (operation == 0x30) {
            place += groups(&at);
        } else if (operation == 0x40) {
            place += 8 * operand;
        } else if (operation >= 0x50 && operation <= 0x80) {
            uint64_t times = operand, skip = 0;
            if (operation == 0x60 || operation == 0x80) times = groups(&at);
            if (operation == 0x70) times = 1;
            if (operation >= 0x70) skip = groups(&at);
            for (; times > 0; times--) {
                const uint64_t moved = long_word(place) - base + (uint64_t)image;
                memcpy(place, &moved, sizeof moved);
                place += 8 + skip;
            }
        } else if (operation != 0) {
            stop("unknown operation");
        }
    }
}

static uint64_t base;

static void load(void) {
    if (image != NULL) return;
    read_file();
    if (word(file) != 0xfeedfacf) stop("not Mach-O");
    uint64_t segments[MAX_SEGMENTS], rights[MAX_SEGMENTS], lengths[MAX_SEGMENTS];
    unsigned n_segments = 0;
    unsigned char *memory = mmap(NULL, MAX_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) stop("no memory");
    image = memory + (PAGE - (uintptr_t)memory % PAGE);

    const unsigned char *command = file + 32;
    int has_base = 0;
    for (uint32_t i = word(file + 16); i > 0; i--, command += word(command + 4)) {
        if ((word(command) & 0xff) == LOADER_TABLES) tables = command;
        if (word(command) != SEGMENT || strcmp((const char *)command + 8, "__PAGEZERO") == 0) {
            /* Numbers of segments count this one. */
            if (word(command) == SEGMENT) segments[n_segments] = rights[n_segments] = lengths[n_segments] = 0, n_segments++;
            continue;
        }
        if (n_segments == MAX_SEGMENTS) stop("too many segments");
        const uint64_t address = long_word(command + 24);
        if (!has_base) base = address, has_base = 1;
        memcpy(image + (address - base), file + long_word(command + 40), long_word(command + 48));
        segments[n_segments] = address;
        lengths[n_segments] = long_word(command + 32);
        rights[n_segments] = word(command + 60);
        n_segments++;
    }
    if (tables == NULL) stop("no tables");
    move(segments, base);
    for (unsigned i = 0; i < n_segments; i++) {
        if (lengths[i] == 0) continue;
        const int protection = (rights[i] & 1 ? PROT_READ : 0) | (rights[i] & 2 ? PROT_WRITE : 0) | (rights[i] & 4 ? PROT_EXEC : 0);
        if (mprotect(image + (segments[i] - base), lengths[i], protection) != 0) stop("no rights");
        if (rights[i] & 4) __builtin___clear_cache((char *)image + (segments[i] - base), (char *)image + (segments[i] - base) + lengths[i]);
    }
}

/* The address of an export. */
static void *export(const char *name) {
    load();
    const unsigned char *const tree = file + word(tables + 40), *node = tree;
    for (;;) {
        const uint64_t len = groups(&node);
        if (*name == 0) {
            if (len == 0) stop("no such export");
            groups(&node);
            /* Addresses of exports are relative to the header. */
            return image + groups(&node);
        }
        node += len;
        unsigned n_edges = *node++;
        for (; n_edges > 0; n_edges--) {
            const size_t part = strlen((const char *)node);
            const int is_next = strncmp(name, (const char *)node, part) == 0;
            node += part + 1;
            const uint64_t next = groups(&node);
            if (!is_next) continue;
            name += part;
            node = tree + next;
            break;
        }
        if (n_edges == 0 && *name != 0) stop("no such export");
    }
}

int32_t NAME(MODEL, check)(const int64_t *const *shapes, int64_t *dims, symshape_error *error) {
    int32_t (*check)(const int64_t *const *, int64_t *, symshape_error *);
    void *address = export("_" TEXT(MODEL) "_check");
    memcpy(&check, &address, sizeof check);
    return check(shapes, dims, error);
}

size_t NAME(MODEL, arena_bytes)(const int64_t *dims) {
    size_t (*arena_bytes)(const int64_t *);
    void *address = export("_" TEXT(MODEL) "_arena_bytes");
    memcpy(&arena_bytes, &address, sizeof arena_bytes);
    return arena_bytes(dims);
}

int32_t NAME(MODEL, run)(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena, const symshape_exec *exec) {
    int32_t (*run)(const void *const *, void *const *, int64_t *, void *, const symshape_exec *);
    void *address = export("_" TEXT(MODEL) "_run");
    memcpy(&run, &address, sizeof run);
    return run(inputs, outputs, dims, arena, exec);
}
