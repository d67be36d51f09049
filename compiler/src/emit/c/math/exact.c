static inline int own_signbit(double x) {
    return (int)(bits_from_f64(x) >> 63);
}

static inline double own_fabs(double x) {
    return f64_from_bits(bits_from_f64(x) & INT64_MAX);
}

static inline double own_copysign(double x, double sign) {
    return f64_from_bits((bits_from_f64(x) & INT64_MAX) | (bits_from_f64(sign) & ~(uint64_t)INT64_MAX));
}

/* The double without the lower half of its bits: products of two such doubles are exact. */
static inline double own_high(double x) {
    return f64_from_bits(bits_from_f64(x) & ~UINT64_C(0xffffffff));
}

/* Rounded towards zero: the bits of the fraction are cleared. */
static inline double own_trunc(double x) {
    const int exponent = (int)(bits_from_f64(x) >> 52 & 0x7ff) - 1023;
    if (exponent < 0) return own_copysign(0.0, x);
    return exponent >= 52 ? x : f64_from_bits(bits_from_f64(x) & ~(((UINT64_C(1) << 52) - 1) >> exponent));
}

static inline double own_floor(double x) {
    const double whole = own_trunc(x);
    return whole > x ? whole - 1.0 : whole;
}

static inline double own_ceil(double x) {
    const double whole = own_trunc(x);
    return whole < x ? own_copysign(whole + 1.0, x) : whole;
}

/* Rounded to the nearest integer, halves to even. */
static inline double own_rint(double x) {
    const double whole = own_trunc(x);
    const double rest = own_fabs(x - whole);
    const int is_odd = own_trunc(whole * 0.5) * 2.0 != whole;
    if (rest > 0.5 || (rest == 0.5 && is_odd)) return whole + own_copysign(1.0, x);
    return whole;
}

/* The same of a float, without doubles. Sums of floats from 2^23 on have no fraction, so adding 2^23 rounds. */
static inline float own_rintf(float x) {
    const uint32_t bits = bits_from_f32(x);
    const uint32_t sign = bits & 0x80000000u;
    if ((bits & 0x7fffffffu) >= 0x4b000000u) return x;
    const float large = f32_from_bits(bits & 0x7fffffffu) + 8388608.0f;
    return f32_from_bits(bits_from_f32(large - 8388608.0f) | sign);
}

/* x * 2^k for |k| < 2000, rounded once or twice. */
static inline double own_scale(double x, int k) {
    const int half = k >= 0 ? k / 2 : -((1 - k) / 2);
    return x * f64_from_bits((uint64_t)(half + 1023) << 52) * f64_from_bits((uint64_t)(k - half + 1023) << 52);
}

/* c[0] + x * (c[1] + x * (...)) */
static inline double own_poly(double x, const double *c, int count) {
    double sum = c[count - 1];
    for (int i = count - 2; i >= 0; i--) sum = x * sum + c[i];
    return sum;
}

/* a * b and, in `error`, its rounding error. */
static inline double own_product(double a, double b, double *error) {
    const double ta = a * 134217729.0, tb = b * 134217729.0;
    const double ah = ta - (ta - a), bh = tb - (tb - b);
    const double al = a - ah, bl = b - bh;
    const double p = a * b;
    *error = al * bl - (((p - ah * bh) - al * bh) - ah * bl);
    return p;
}

/* Newton's method from a guess by the exponent, and a last step with the exact residue. */
static inline double own_sqrt(double x) {
    if (x == 0 || x != x || x > 1.7976931348623157e308) return x;
    if (x < 0) return NAN;
    const double normal = x < 2.2250738585072014e-308 ? x * 18014398509481984.0 : x;
    const int scaled_by = x < 2.2250738585072014e-308 ? 27 : 0;
    const int exponent = (int)(bits_from_f64(normal) >> 52) - 1023;
    const int half = exponent >= 0 ? exponent / 2 : -((1 - exponent) / 2);
    const double m = own_scale(normal, -2 * half);
    double root = f64_from_bits((bits_from_f64(m) >> 1) + (UINT64_C(0x1ff7a3be) << 32));
    for (int i = 0; i < 4; i++) root = 0.5 * (root + m / root);
    double error;
    const double square = own_product(root, root, &error);
    root += ((m - square) - error) / (2.0 * root);
    return own_scale(root, half - scaled_by);
}

/* A positive double as mantissa, with its leading bit at position 52, and exponent. */
static inline uint64_t own_mantissa(double x, int *exponent) {
    uint64_t m = bits_from_f64(x) & ((UINT64_C(1) << 52) - 1);
    *exponent = (int)(bits_from_f64(x) >> 52);
    if (*exponent > 0) return m | UINT64_C(1) << 52;
    for (*exponent = 1; m >> 52 == 0; m <<= 1) --*exponent;
    return m;
}

/* The remainder with the sign of x: long division of the mantissas, one bit of the quotient at a time. */
static inline double own_fmod(double x, double y) {
    const double ax = own_fabs(x), ay = own_fabs(y);
    if (ax < ay) return x;
    if (!(ax <= 1.7976931348623157e308) || !(ay > 0)) return NAN;
    int ex, ey;
    uint64_t mx = own_mantissa(ax, &ex);
    const uint64_t my = own_mantissa(ay, &ey);
    for (; ex > ey; ex--) mx = (mx >= my ? mx - my : mx) << 1;
    return own_copysign(own_scale((double)(mx >= my ? mx - my : mx), ey - 1075), x);
}
