/* Sums of products of bytes: `count` elements of a row times as many rows of sixteen columns with signs, added to the sums
 * of the columns. Small cores of Arm have few registers, so they compute four columns at a time. Those with the DSP extension
 * multiply two pairs of 16-bit integers in one instruction. */
#if defined(__arm__) && defined(__GNUC__) && !defined(__ARM_NEON) && !defined(__ARM_FEATURE_MVE)
#define HAS_BYTE_DOTS 1
#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SIMD32) && !defined(__ARM_BIG_ENDIAN)
#define HAS_BYTE_PAIRS 1
#endif
#endif

#ifdef HAS_BYTE_PAIRS
static inline uint32_t four_bytes(const uint8_t *from) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, from, sizeof bytes);
    return bytes;
}

/* The bytes 0 and 2 as 16-bit integers. */
static inline __attribute__((always_inline)) uint32_t even_bytes(const uint8_t *from, int is_signed) {
    uint32_t halves;
    if (is_signed) __asm__("sxtb16 %0, %1" : "=r"(halves) : "r"(four_bytes(from)));
    else __asm__("uxtb16 %0, %1" : "=r"(halves) : "r"(four_bytes(from)));
    return halves;
}

/* The bytes 1 and 3 as 16-bit integers. */
static inline __attribute__((always_inline)) uint32_t odd_bytes(const uint8_t *from, int is_signed) {
    uint32_t halves;
    if (is_signed) __asm__("sxtb16 %0, %1, ror #8" : "=r"(halves) : "r"(four_bytes(from)));
    else __asm__("uxtb16 %0, %1, ror #8" : "=r"(halves) : "r"(four_bytes(from)));
    return halves;
}

/* Adds the products of the halves of `x` with the low halves of `a` and `b`. */
static inline __attribute__((always_inline)) uint32_t add_low(uint32_t sum, uint32_t x, uint32_t a, uint32_t b) {
    uint32_t pair;
    __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(pair) : "r"(a), "r"(b));
    __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(x), "r"(pair));
    return sum;
}

/* Adds the products of the halves of `x` with the high halves of `a` and `b`. */
static inline __attribute__((always_inline)) uint32_t add_high(uint32_t sum, uint32_t x, uint32_t a, uint32_t b) {
    uint32_t pair;
    __asm__("pkhtb %0, %2, %1, asr #16" : "=r"(pair) : "r"(a), "r"(b));
    __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(x), "r"(pair));
    return sum;
}
#endif

#ifdef HAS_BYTE_DOTS
static inline __attribute__((always_inline)) void byte_dots(int32_t *restrict sums, const uint8_t *row, int row_is_signed,
                                                            const uint8_t *panel, int32_t count) {
    for (int j = 0; j < 16; j += 4) {
        const uint8_t *x = row;
        const uint8_t *w = panel + j;
        int32_t rest = count;
        uint32_t s0 = (uint32_t)sums[j], s1 = (uint32_t)sums[j + 1];
        uint32_t s2 = (uint32_t)sums[j + 2], s3 = (uint32_t)sums[j + 3];
#ifdef HAS_BYTE_PAIRS
        for (; rest >= 4; rest -= 4, x += 4, w += 64) {
            uint32_t pair = even_bytes(x, row_is_signed);
            uint32_t a = even_bytes(w, 1), b = even_bytes(w + 32, 1);
            s0 = add_low(s0, pair, a, b);
            s2 = add_high(s2, pair, a, b);
            a = odd_bytes(w, 1), b = odd_bytes(w + 32, 1);
            s1 = add_low(s1, pair, a, b);
            s3 = add_high(s3, pair, a, b);
            /* Loads that were moved over this line would need more registers than there are. */
            __asm__ volatile("" ::: "memory");
            pair = odd_bytes(x, row_is_signed);
            a = even_bytes(w + 16, 1), b = even_bytes(w + 48, 1);
            s0 = add_low(s0, pair, a, b);
            s2 = add_high(s2, pair, a, b);
            a = odd_bytes(w + 16, 1), b = odd_bytes(w + 48, 1);
            s1 = add_low(s1, pair, a, b);
            s3 = add_high(s3, pair, a, b);
        }
#endif
        for (; rest > 0; rest--, x++, w += 16) {
            const int32_t value = row_is_signed ? (int32_t)(int8_t)*x : (int32_t)*x;
            s0 += (uint32_t)(value * (int8_t)w[0]);
            s1 += (uint32_t)(value * (int8_t)w[1]);
            s2 += (uint32_t)(value * (int8_t)w[2]);
            s3 += (uint32_t)(value * (int8_t)w[3]);
        }
        sums[j] = (int32_t)s0, sums[j + 1] = (int32_t)s1;
        sums[j + 2] = (int32_t)s2, sums[j + 3] = (int32_t)s3;
    }
}
#endif

