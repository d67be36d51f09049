/* The quotient rounded down, and its remainder. Both are 0 for a divisor of 0; that result is never used. */
static inline int64_t floor_div(int64_t a, int64_t b) {
    if (b == 0) return 0;
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static inline int64_t floor_mod(int64_t a, int64_t b) {
    if (b == 0) return 0;
    return a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
}

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* NaN if either operand is NaN; -0 is below 0. */
static inline float min_f32(float a, float b) {
#if defined(__wasm__) && defined(__clang__)
    return __builtin_wasm_min_f32(a, b);
#else
    if (a != a || b != b) return NAN;
    return a < b || (a == b && signbit(a)) ? a : b;
#endif
}

static inline float max_f32(float a, float b) {
#if defined(__wasm__) && defined(__clang__)
    return __builtin_wasm_max_f32(a, b);
#else
    if (a != a || b != b) return NAN;
    return a > b || (a == b && !signbit(a)) ? a : b;
#endif
}

static inline double min_f64(double a, double b) {
#if defined(__wasm__) && defined(__clang__)
    return __builtin_wasm_min_f64(a, b);
#else
    if (a != a || b != b) return NAN;
    return a < b || (a == b && signbit(a)) ? a : b;
#endif
}

static inline double max_f64(double a, double b) {
#if defined(__wasm__) && defined(__clang__)
    return __builtin_wasm_max_f64(a, b);
#else
    if (a != a || b != b) return NAN;
    return a > b || (a == b && !signbit(a)) ? a : b;
#endif
}

/* The minimum for a constant `b` that is neither NaN nor -0, in one comparison. */
static inline float at_most_f32(float a, float b) {
    return a > b ? b : a;
}

/* The maximum for a constant `b` that is not NaN. The sum with 0 turns -0 into 0, which is above it. */
static inline float at_least_f32(float a, float b) {
    const float x = b == 0 ? a + 0.0f : a;
    return x < b ? b : x;
}

/* -1 or 1; zeros and NaN are returned unchanged. */
static inline float sign_f32(float x) {
    return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
}

static inline double sign_f64(double x) {
    return x > 0 ? 1.0 : x < 0 ? -1.0 : x;
}

/* The remainder with the divisor's sign. */
static inline float mod_f32(float x, float y) {
    const float rest = fmodf(x, y);
    if (rest == 0) return copysignf(0.0f, y);
    return (rest < 0) != (y < 0) ? rest + y : rest;
}

static inline double mod_f64(double x, double y) {
    const double rest = fmod(x, y);
    if (rest == 0) return copysign(0.0, y);
    return (rest < 0) != (y < 0) ? rest + y : rest;
}

/* Integer division: 0 for a divisor of 0; the smallest integer divided by -1 wraps. */
static inline int64_t div_i64(int64_t a, int64_t b) {
    if (b == 0) return 0;
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

static inline int64_t rem_i64(int64_t a, int64_t b) {
    return b == 0 || b == -1 ? 0 : a % b;
}

static inline int64_t mod_i64(int64_t a, int64_t b) {
    const int64_t rest = rem_i64(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static inline uint64_t div_u64(uint64_t a, uint64_t b) {
    return b == 0 ? 0 : a / b;
}

static inline uint64_t rem_u64(uint64_t a, uint64_t b) {
    return b == 0 ? 0 : a % b;
}

/* Powers of integers wrap. */
static inline uint64_t pow_u64(uint64_t x, uint64_t exponent) {
    uint64_t power = 1;
    for (; exponent > 0; exponent >>= 1, x *= x) {
        if (exponent & 1) power *= x;
    }
    return power;
}

static inline int64_t pow_i64(int64_t x, int64_t exponent) {
    if (exponent >= 0) return (int64_t)pow_u64((uint64_t)x, (uint64_t)exponent);
    if (x == 1) return 1;
    if (x == -1) return exponent % 2 == 0 ? 1 : -1;
    return 0;
}

/* Shifts by the width or more: all bits become 0, or the sign bit of an arithmetic right shift. */
static inline uint64_t shl_u64(uint64_t x, uint64_t by, unsigned width) {
    return by < width ? x << by : 0;
}

static inline uint64_t shr_u64(uint64_t x, uint64_t by, unsigned width) {
    return by < width ? x >> by : 0;
}

static inline int64_t shr_i64(int64_t x, uint64_t by, unsigned width) {
    const unsigned shift = by < width ? (unsigned)by : width - 1;
    return x < 0 ? ~(~x >> shift) : x >> shift;
}

/* Conversions to integers saturate, and NaN becomes 0. */
static inline int32_t i32_from_f32(float x, float lo, float hi) {
    if (x != x) return 0;
    return (int32_t)(x < lo ? lo : x > hi ? hi : x);
}

static inline int64_t i64_from_f64(double x) {
    if (x != x) return 0;
    if (x >= 9223372036854775808.0) return INT64_MAX;
    return x < -9223372036854775808.0 ? INT64_MIN : (int64_t)x;
}

static inline uint64_t u64_from_f64(double x) {
    if (!(x > 0)) return 0;
    return x >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)x;
}

/* Half precision, rounded to nearest even. */
static inline float f32_from_f16(uint16_t half) {
    union { uint32_t bits; float value; } number;
    const uint32_t magnitude = half & 0x7fffu;
    number.bits = magnitude << 13;
    number.value *= 5.192296858534828e33f; /* 2^112 */
    if (magnitude >= 0x7c00u) number.bits = (magnitude << 13) | 0x7f800000u;
    number.bits |= (uint32_t)(half & 0x8000u) << 16;
    return number.value;
}

static inline uint16_t f16_from_f32(float value) {
    union { uint32_t bits; float value; } number;
    number.value = value;
    const uint32_t sign = number.bits & 0x80000000u;
    number.bits ^= sign;
    uint32_t half;
    if (number.bits > 0x7f800000u) {
        half = 0x7e00u;
    } else if (number.bits >= 0x47800000u) {
        half = 0x7c00u;
    } else if (number.bits < 0x38800000u) {
        number.value += 0.5f; /* the last bit of the sum has the value of the last bit of a subnormal half */
        half = number.bits - 0x3f000000u;
    } else {
        const uint32_t odd = (number.bits >> 13) & 1;
        half = (number.bits - 0x38000000u + 0xfffu + odd) >> 13;
    }
    return (uint16_t)(half | (sign >> 16));
}

static inline float f32_from_bf16(uint16_t half) {
    union { uint32_t bits; float value; } number;
    number.bits = (uint32_t)half << 16;
    return number.value;
}

static inline uint16_t bf16_from_f32(float value) {
    union { uint32_t bits; float value; } number;
    number.value = value;
    if (value != value) return (uint16_t)((number.bits >> 16) | 0x40u);
    return (uint16_t)((number.bits + 0x7fffu + ((number.bits >> 16) & 1)) >> 16);
}

/* Little-endian scales of weights of few bits. */
static inline float f16_scale(const uint8_t *bytes) {
    return f32_from_f16((uint16_t)(bytes[0] | bytes[1] << 8));
}

static inline float bf16_scale(const uint8_t *bytes) {
    return f32_from_bf16((uint16_t)(bytes[0] | bytes[1] << 8));
}

static inline float f32_scale(const uint8_t *bytes) {
    union { uint32_t bits; float value; } number;
    number.bits = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    return number.value;
}

/* The integer of `bits` bits from bit `bit` of a byte on. It is stored higher by half of its range. */
static inline int few_bits(uint8_t byte, int bit, int bits) {
    return ((byte >> bit) & ((1 << bits) - 1)) - (1 << (bits - 1));
}

/* The larger of the bits of a magnitude and those of `value`. Those of NaN are largest. */
static inline int32_t max_magnitude(int32_t bits, float value) {
    union { float value; uint32_t bits; } number;
    number.value = value;
    const int32_t other = (int32_t)(number.bits & 0x7fffffffu);
    return other > bits ? other : bits;
}

/* The scale of a block that is rounded to 8 bits, from the bits of its largest magnitude. */
static inline float block_scale(int32_t bits) {
    union { uint32_t bits; float value; } largest;
    largest.bits = (uint32_t)bits;
    return largest.value / 127.0f;
}

/* The factor of a block's elements before they are rounded: 0 unless the largest is finite and at least 2^-100. */
static inline float block_inverse(int32_t bits) {
    union { uint32_t bits; float value; } largest;
    largest.bits = (uint32_t)bits;
    return bits >= 27 << 23 && bits < 0x7f800000 ? 127.0f / largest.value : 0.0f;
}

/* The nearest integer of an element, halves to even. */
static inline int32_t rounded_code(float value, float inverse) {
    return inverse == 0.0f ? 0 : (int32_t)rintf(value * inverse);
}

/* The nearest bf16; denormals become 0. */
static inline float high_f32(float value) {
    if (fabsf(value) < 0x1p-126f) return copysignf(0.0f, value);
    return f32_from_bf16(bf16_from_f32(value));
}

/* A double rounded to odd: if it is inexact, the neighbour whose last bit is set. Rounding the result again then gives
 * the same value as rounding once. */
static inline float odd_from_f64(double value) {
    union { uint32_t bits; float value; } number;
    number.value = (float)value;
    if (value == value && number.value != value && (number.bits & 1) == 0) {
        number.bits += fabs((double)number.value) > fabs(value) ? UINT32_MAX : 1;
    }
    return number.value;
}

/* Fills in an error and returns its code; `refused` has everything but the values. */
static int32_t fail(symshape_error *error, const symshape_error *refused, int64_t value, int64_t lo, int64_t hi) {
    *error = *refused;
    error->value = value;
    error->lo = lo;
    error->hi = hi;
    return refused->code;
}

static inline int is_listed(int64_t value, const int64_t *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (list[i] == value) return 1;
    }
    return 0;
}
