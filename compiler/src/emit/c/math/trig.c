/* The multiple of pi/2 that is nearest to a finite x, modulo 4. The rest is *y + *tail. Small arguments are reduced in
 * three exact steps (Cody and Waite), larger ones by the bits of 2/pi that affect the result (Payne and Hanek). */
static inline int own_reduce_small(double x, double *y, double *tail) {
    const double n = own_rint(x * 0.6366197723675814);
    const double a = x - n * 1.5707963267341256, b = n * 6.077100506303966e-11;
    const double first = a - b;
    const double error_1 = (a - (first - (first - a))) - (b + (first - a));
    const double c = n * 2.0222662487111665e-21;
    const double second = first - c;
    const double error_2 = (first - (second - (second - first))) - (c + (second - first));
    const double rest = error_1 + error_2 - n * 8.4784276603689e-32;
    *y = second + rest;
    *tail = (second - *y) + rest;
    return (int)((int64_t)n & 3);
}

/* The upper half of a product of two unsigned integers. */
static inline uint64_t own_mul_high(uint64_t a, uint64_t b) {
    const uint64_t al = a & 0xffffffffu, ah = a >> 32, bl = b & 0xffffffffu, bh = b >> 32;
    const uint64_t low = al * bl, other = al * bh;
    uint64_t cross = ah * bl;
#if defined(__wasm__)
    /* Clang would recognise the product and call a function for 128 bits, which modules lack. */
    __asm__("" : "+r"(cross));
#endif
    const uint64_t middle = (low >> 32) + (cross & 0xffffffffu) + (other & 0xffffffffu);
    return ah * bh + (cross >> 32) + (other >> 32) + (middle >> 32);
}

static inline int own_reduce_large(double x, double *y, double *tail) {
    /* 64 zeros and the first 1280 bits of 2/pi. */
    static const uint64_t two_over_pi[21] = {
        0, UINT64_C(0xa2f9836e4e441529), UINT64_C(0xfc2757d1f534ddc0), UINT64_C(0xdb6295993c439041),
        UINT64_C(0xfe5163abdebbc561), UINT64_C(0xb7246e3a424dd2e0), UINT64_C(0x6492eea09d1921c),
        UINT64_C(0xfe1deb1cb129a73e), UINT64_C(0xe88235f52ebb4484), UINT64_C(0xe99c7026b45f7e41),
        UINT64_C(0x3991d639835339f4), UINT64_C(0x9c845f8bbdf9283b), UINT64_C(0x1ff897ffde05980f),
        UINT64_C(0xef2f118b5a0a6d1f), UINT64_C(0x6d367ecf27cb09b7), UINT64_C(0x4f463f669e5fea2d),
        UINT64_C(0x7527bac7ebe5f17b), UINT64_C(0x3d0739f78a5292ea), UINT64_C(0x6bfb5fb11f8d5d08),
        UINT64_C(0x56033046fc7b6bab), UINT64_C(0xf0cfbc209af4361d)};
    const uint64_t m = (bits_from_f64(x) & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
    const unsigned first = (unsigned)((bits_from_f64(x) >> 52 & 0x7ff) - 1075 + 62);
    const uint64_t *at = two_over_pi + first / 64;
    const unsigned shift = first % 64;
    uint64_t w[3];
    for (int i = 0; i < 3; i++) w[2 - i] = at[i] << shift | at[i + 1] >> 1 >> (63 - shift);
    const uint64_t low = m * w[1];
    const uint64_t low_sum = low + own_mul_high(m, w[0]);
    const uint64_t high = m * w[2] + own_mul_high(m, w[1]) + (low_sum < low);
    const uint64_t fraction = high << 2 | low_sum >> 62, below = low_sum << 2;
    const int quadrant = (int)((high >> 62) + (fraction >> 63)) & 3;
    /* The signed fraction is within +-1/2, as 64 bits and the 64 bits below. */
    const uint64_t size = fraction >> 63 ? 0 - fraction : fraction;
    const double rounded = (double)(size >> 11) * 2048.0;
    const double left = (double)(int64_t)(size - (size >> 11 << 11));
    const double sign = fraction >> 63 ? -1.0 : 1.0;
    const double top = sign * rounded * 5.421010862427522e-20;
    const double rest = (sign * left + (double)below * 5.421010862427522e-20) * 5.421010862427522e-20;
    double error;
    const double value = own_product(top, 1.5707963267948966, &error);
    const double correction = error + top * 6.123233995736766e-17 + rest * 1.5707963267948966;
    const double sum = value + correction;
    *y = x < 0 ? -sum : sum;
    *tail = x < 0 ? -((value - sum) + correction) : (value - sum) + correction;
    return x < 0 ? -quadrant & 3 : quadrant;
}

/* Sine and cosine of a finite number. */
static inline void own_sin_cos(double x, double *sin_x, double *cos_x) {
    static const double s[5] = {0.00833333333332249, -0.0001984126982985795, 2.7557313707070068e-06,
        -2.5050760253406863e-08, 1.58969099521155e-10};
    static const double k[6] = {0.0416666666666666, -0.001388888888887411, 2.480158728947673e-05,
        -2.7557314351390663e-07, 2.087572321298175e-09, -1.1359647557788195e-11};
    double y, tail;
    const int n = own_fabs(x) < 1048576.0 ? own_reduce_small(x, &y, &tail) : own_reduce_large(x, &y, &tail);
    const double z = y * y;
    const double v = z * y;
    const double sine = y - ((z * (0.5 * tail - v * own_poly(z, s, 5)) - tail) + v * 0.16666666666666632);
    const double half = 0.5 * z;
    const double w = 1.0 - half;
    const double cosine = w + (((1.0 - w) - half) + (z * (z * own_poly(z, k, 6)) - y * tail));
    const double first = n & 1 ? cosine : sine, second = n & 1 ? sine : cosine;
    *sin_x = n & 2 ? -first : first;
    *cos_x = (n + 1) & 2 ? -second : second;
}

static inline double own_sin(double x) {
    if (own_fabs(x) < 1e-20) return x;
    if (!(own_fabs(x) <= 1.7976931348623157e308)) return NAN;
    double sin_x, cos_x;
    own_sin_cos(x, &sin_x, &cos_x);
    return sin_x;
}

static inline double own_cos(double x) {
    if (!(own_fabs(x) <= 1.7976931348623157e308)) return NAN;
    double sin_x, cos_x;
    own_sin_cos(x, &sin_x, &cos_x);
    return cos_x;
}

static inline double own_tan(double x) {
    if (own_fabs(x) < 1e-20) return x;
    if (!(own_fabs(x) <= 1.7976931348623157e308)) return NAN;
    double sin_x, cos_x;
    own_sin_cos(x, &sin_x, &cos_x);
    return sin_x / cos_x;
}

static inline double own_asin_ratio(double z) {
    static const double p[6] = {0.16666666666666666, -0.3255658186224009, 0.20121253213486293,
        -0.04005553450067941, 0.0007915349942898145, 3.479331075960212e-05};
    static const double q[5] = {1.0, -2.403394911734414, 2.0209457602335057, -0.6882839716054533,
        0.07703815055590194};
    return z * own_poly(z, p, 6) / own_poly(z, q, 5);
}

static inline double own_asin(double x) {
    const double a = own_fabs(x);
    if (!(a <= 1.0)) return NAN;
    if (a < 0.5) return own_copysign(a + a * own_asin_ratio(a * a), x);
    const double z = (1.0 - a) * 0.5;
    const double s = own_sqrt(z);
    const double r = own_asin_ratio(z);
    if (a > 0.975) return own_copysign(1.5707963267948966 - (2.0 * (s + s * r) - 6.123233995736766e-17), x);
    const double f = own_high(s);
    const double rest = (z - f * f) / (s + f);
    const double inner = 2.0 * s * r - (6.123233995736766e-17 - 2.0 * rest);
    return own_copysign(0.7853981633974483 - (inner - (0.7853981633974483 - 2.0 * f)), x);
}

static inline double own_acos(double x) {
    const double a = own_fabs(x);
    if (!(a <= 1.0)) return NAN;
    if (x == 1.0) return 0.0;
    if (a < 0.5) return 1.5707963267948966 - (x - (6.123233995736766e-17 - x * own_asin_ratio(x * x)));
    const double z = (1.0 - a) * 0.5;
    const double s = own_sqrt(z);
    const double r = own_asin_ratio(z);
    if (x < 0) return 2.0 * (1.5707963267948966 - (s + (r * s - 6.123233995736766e-17)));
    const double f = own_high(s);
    const double rest = (z - f * f) / (s + f);
    return 2.0 * (f + (r * s + rest));
}

static inline double own_atan(double x) {
    static const double odd[6] = {0.3333333333333293, 0.14285714272503466, 0.09090887133436507,
        0.06661073137387531, 0.049768779946159324, 0.016285820115365782};
    static const double even[5] = {-0.19999999999876483, -0.11111110405462356, -0.0769187620504483,
        -0.058335701337905735, -0.036531572744216916};
    const double a = own_fabs(x);
    double above = a, below = 1.0, high = 0.0, low = 0.0;
    if (a >= 2.4375) {
        above = -1.0, below = a, high = 1.5707963267948966, low = 6.123233995736766e-17;
    } else if (a >= 1.1875) {
        above = a - 1.5, below = 1.5 * a + 1.0, high = 0.982793723247329, low = 1.3903311031230998e-17;
    } else if (a >= 0.6875) {
        above = a - 1.0, below = a + 1.0, high = 0.7853981633974483, low = 3.061616997868383e-17;
    } else if (a >= 0.4375) {
        above = 2.0 * a - 1.0, below = a + 2.0, high = 0.4636476090008061, low = 2.2698777452961687e-17;
    }
    const double t = above / below;
    const double z = t * t;
    const double w = z * z;
    const double sum = z * own_poly(w, odd, 6) + w * own_poly(w, even, 5);
    return own_copysign(high - (t * sum - low - t), x);
}

static inline double own_atan2(double y, double x) {
    const double ax = own_fabs(x), ay = own_fabs(y);
    if (x != x || y != y) return NAN;
    double angle = own_atan(ay / ax);
    if (ax == 0 && ay == 0) angle = 0.0;
    if (ax > 1.7976931348623157e308 && ay > 1.7976931348623157e308) angle = 0.7853981633974483;
    if (own_signbit(x)) angle = 3.141592653589793 - (angle - 1.2246467991473532e-16);
    return own_copysign(angle, y);
}
