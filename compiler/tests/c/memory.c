/* The four functions that C compilers may call although no source does. A program without a C library has these, or
 * those of its kernel. The volatile pointers keep a compiler from making a call of them out of their own loops. */
#include <stddef.h>

void *memset(void *to, int value, size_t count) {
    volatile unsigned char *bytes = to;
    for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)value;
    return to;
}

void *memcpy(void *to, const void *from, size_t count) {
    volatile unsigned char *bytes = to;
    const unsigned char *source = from;
    for (size_t i = 0; i < count; i++) bytes[i] = source[i];
    return to;
}

void *memmove(void *to, const void *from, size_t count) {
    volatile unsigned char *bytes = to;
    const unsigned char *source = from;
    if (source >= (const unsigned char *)to) return memcpy(to, from, count);
    for (size_t i = count; i > 0; i--) bytes[i - 1] = source[i - 1];
    return to;
}

int memcmp(const void *left, const void *right, size_t count) {
    const unsigned char *a = left, *b = right;
    for (size_t i = 0; i < count; i++) {
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    }
    return 0;
}
