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

