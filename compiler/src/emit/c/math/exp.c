/* Exponentials, logarithms, and functions defined by them, as FreeBSD's msun (Sun Microsystems, 1993) reduces and
 * approximates them. All functions are computed in double precision; single precision rounds their results once. */
static inline double own_exp(double x) {
    static const double c[5] = {0.16666666666666602, -0.0027777777777015593, 6.613756321437934e-05,
        -1.6533902205465252e-06, 4.1381367970572385e-08};
    if (x != x) return x;
    if (x < -750.0) return 0.0;
    if (x > 710.0) return INFINITY;
    const double k = own_rint(x * 1.4426950408889634);
    const double hi = x - k * 0.6931471803691238, lo = k * 1.9082149292705877e-10;
    const double r = hi - lo;
    const double z = r * r;
    const double s = r - z * own_poly(z, c, 5);
    return own_scale((r * s / (2.0 - s) - lo + hi) + 1.0, (int)k);
}

static inline double own_expm1(double x) {
    static const double c[6] = {1.0, -0.03333333333333313, 0.0015873015872548146, -7.93650757867488e-05,
        4.008217827329362e-06, -2.0109921818362437e-07};
    if (x != x || x == 0) return x;
    const double a = x < -60.0 ? -60.0 : x > 710.0 ? 710.0 : x;
    const double k = own_rint(a * 1.4426950408889634);
    const double r = (a - k * 0.6931471803691238) - k * 1.9082149292705877e-10;
    const double half = r * 0.5;
    const double square = r * half;
    const double r1 = own_poly(square, c, 6);
    const double t = 3.0 - r1 * half;
    const double reduced = r - (r * (square * ((r1 - t) / (6.0 - r * t))) - square);
    if (k == 0) return reduced;
    return own_scale((1.0 - own_scale(1.0, -(int)k)) + reduced, (int)k);
}

/* The exponent of a positive normal number; `mantissa` becomes the number between sqrt(1/2) and sqrt(2). */
static inline int own_split(double x, double *mantissa) {
    const uint64_t root = UINT64_C(0x3fe6a09e) << 32;
    const uint64_t bits = bits_from_f64(x) + ((UINT64_C(0x3ff00000) << 32) - root);
    *mantissa = f64_from_bits((bits & ((UINT64_C(1) << 52) - 1)) + root);
    return (int)(bits >> 52) - 0x3ff;
}

/* ln(1 + f) + c + k ln 2 */
static inline double own_log_of(double f, double c, double k) {
    static const double odd[4] = {0.6666666666666735, 0.2857142874366239, 0.1818357216161805, 0.14798198605116586};
    static const double even[3] = {0.3999999999940942, 0.22222198432149784, 0.15313837699209373};
    const double half = 0.5 * f * f;
    const double s = f / (2.0 + f);
    const double z = s * s;
    const double w = z * z;
    const double r = z * own_poly(w, odd, 4) + w * own_poly(w, even, 3);
    return s * (half + r) + (k * 1.9082149292705877e-10 + c) - half + f + k * 0.6931471803691238;
}

static inline double own_log(double x) {
    if (x == 0) return -INFINITY;
    if (!(x > 0)) return NAN;
    if (x > 1.7976931348623157e308) return x;
    const int is_small = x < 2.2250738585072014e-308;
    double m;
    const int k = own_split(is_small ? x * 18014398509481984.0 : x, &m);
    return own_log_of(m - 1.0, 0.0, (double)(is_small ? k - 54 : k));
}

static inline double own_log1p(double x) {
    if (x == 0 || x > 1.7976931348623157e308) return x;
    if (x == -1.0) return -INFINITY;
    if (!(x > -1.0)) return NAN;
    if (x > -0.2928932188134524 && x < 0.41421356237309503) return own_log_of(x, 0.0, 0.0);
    double m;
    const double u = x + 1.0;
    const int k = own_split(u, &m);
    const double lost = k >= 2 ? 1.0 - (u - x) : x - (u - 1.0);
    return own_log_of(m - 1.0, k >= 54 ? 0.0 : lost / u, (double)k);
}

/* exp(x) / 2 without overflow where only exp(x) does. */
static inline double own_half_exp(double x) {
    const double root = own_exp(x * 0.5);
    return root * 0.5 * root;
}

static inline double own_sinh(double x) {
    const double a = own_fabs(x);
    if (a > 709.0) return own_copysign(own_half_exp(a), x);
    const double t = own_expm1(a);
    const double twice = a < 1.0 ? 2.0 * t - t * t / (t + 1.0) : t + t / (t + 1.0);
    return own_copysign(twice * 0.5, x);
}

static inline double own_cosh(double x) {
    const double a = own_fabs(x);
    if (a > 709.0) return own_half_exp(a);
    if (a < 0.6931471805599453) {
        const double t = own_expm1(a);
        return t * t / (2.0 * (t + 1.0)) + 1.0;
    }
    const double e = own_exp(a);
    return (e + 1.0 / e) * 0.5;
}

static inline double own_tanh(double x) {
    const double a = own_fabs(x);
    if (a > 22.0) return own_copysign(1.0, x);
    const double t = own_expm1(a < 0.2554 ? a * -2.0 : a * 2.0);
    return own_copysign(a > 0.5493 ? 1.0 - 2.0 / (t + 2.0) : own_fabs(t) / (t + 2.0), x);
}

static inline double own_asinh(double x) {
    const double a = own_fabs(x);
    if (a > 67108864.0) return own_copysign(own_log(a) + 0.6931471805599453, x);
    const double root = own_sqrt(a * a + 1.0);
    const double result = a < 2.0 ? own_log1p(a + a * a / (root + 1.0)) : own_log(2.0 * a + 1.0 / (root + a));
    return own_copysign(result, x);
}

static inline double own_acosh(double x) {
    if (!(x >= 1.0)) return NAN;
    if (x > 67108864.0) return own_log(x) + 0.6931471805599453;
    const double d = x - 1.0;
    if (x < 2.0) return own_log1p(d + own_sqrt(d * d + 2.0 * d));
    return own_log(2.0 * x - 1.0 / (x + own_sqrt(x * x - 1.0)));
}

static inline double own_atanh(double x) {
    const double a = own_fabs(x);
    const double twice = 2.0 * a;
    const double argument = a < 0.5 ? twice + twice * a / (1.0 - a) : 2.0 * (a / (1.0 - a));
    return own_copysign(own_log1p(argument) * 0.5, x);
}
