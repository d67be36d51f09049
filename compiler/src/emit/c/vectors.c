/* Additions in this block may run in any order, so that a sum can have an accumulator for each lane. */
#if defined(__clang__)
#define REASSOCIATED _Pragma("clang fp reassociate(on)")
#else
#define REASSOCIATED
#endif

/* Four floats in a vector register. */
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x4_memory __attribute__((vector_size(16), aligned(4), may_alias));

static inline f32x4 f32x4_load(const float *from) {
    return *(const f32x4_memory *)from;
}

static inline void f32x4_store(float *to, f32x4 x) {
    *(f32x4_memory *)to = x;
}

static inline f32x4 f32x4_splat(float x) {
    const f32x4 all = {x, x, x, x};
    return all;
}

static inline f32x4 f32x4_add_product(f32x4 sum, f32x4 x, f32x4 y) {
#if defined(__wasm_relaxed_simd__)
    return __builtin_wasm_relaxed_madd_f32x4(x, y, sum);
#else
    return sum + x * y;
#endif
}

/* Four integers in a vector register; those in memory may be anywhere. */
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4_memory __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t u16x4_memory __attribute__((vector_size(8), aligned(1), may_alias));
typedef int8_t i8x4_memory __attribute__((vector_size(4), aligned(1), may_alias));

static inline u32x4 u32x4_load(const uint8_t *from) {
    return *(const u32x4_memory *)from;
}

static inline f32x4 f32x4_from_bytes(const uint8_t *from) {
    return (f32x4)u32x4_load(from);
}

static inline f32x4 f32x4_from_i8(const uint8_t *from) {
    return __builtin_convertvector(__builtin_convertvector(*(const i8x4_memory *)from, i32x4), f32x4);
}

static inline f32x4 f32x4_from_bf16(const uint8_t *from) {
    return (f32x4)(__builtin_convertvector(*(const u16x4_memory *)from, u32x4) << 16);
}

static inline f32x4 f32x4_from_f16(const uint8_t *from) {
    const u32x4 bits = __builtin_convertvector(*(const u16x4_memory *)from, u32x4);
    const u32x4 magnitude = (bits & 0x7fff) << 13;
    /* The exponent of infinity and NaN is all ones in both types. */
    const u32x4 special = (u32x4)(magnitude >= 0x0f800000) & 0x7f800000;
    return (f32x4)((u32x4)((f32x4)magnitude * 0x1p112f) | special | (bits & 0x8000) << 16);
}

/* The signed integers of `bits` bits from bit `low` of each word on. */
static inline f32x4 f32x4_from_field(u32x4 words, int low, int bits) {
    return __builtin_convertvector((i32x4)(words << (32 - low - bits)) >> (32 - bits), f32x4);
}

static inline f32x4 f32x4_from_i32(i32x4 x) {
    return __builtin_convertvector(x, f32x4);
}

static inline i32x4 i32x4_splat(int32_t x) {
    const i32x4 all = {x, x, x, x};
    return all;
}

static inline i32x4 i32x4_from_i8(const uint8_t *from) {
    return __builtin_convertvector(*(const i8x4_memory *)from, i32x4);
}

/* Two integers of 16 bits as a word: `low` in the lower half. */
static inline int32_t pair_of_i16(int16_t low, int16_t high) {
    return (int32_t)((uint32_t)(uint16_t)low | (uint32_t)(uint16_t)high << 16);
}

/* The sum with the products of the lower halves and of the upper halves of all lanes. The halves of `y` are not negative. */
static inline i32x4 i32x4_add_dot(i32x4 sum, i32x4 x, u32x4 y) {
#if defined(__wasm_simd128__)
    typedef int16_t i16x8 __attribute__((vector_size(16)));
    return sum + __builtin_wasm_dot_s_i32x4_i16x8((i16x8)x, (i16x8)y);
#else
    const i32x4 low = (i32x4)((u32x4)x << 16) >> 16;
    return sum + low * (i32x4)(y & 0xffff) + (x >> 16) * (i32x4)(y >> 16);
#endif
}

