/* log2(a) of a positive finite number in two parts; the first is short enough to be multiplied exactly. The three
 * intervals are those of FreeBSD's msun (Sun Microsystems, 2004): around 1, around 1.5, and the upper end. */
static inline double own_log2(double a, double *low) {
    static const double c[6] = {0.5999999999999946, 0.4285714285785502, 0.33333332981837743, 0.272728123808534,
        0.23066074577556175, 0.20697501780033842};
    const int is_small = a < 2.2250738585072014e-308;
    const uint64_t all = bits_from_f64(is_small ? a * 9007199254740992.0 : a);
    const uint64_t mantissa = all & ((UINT64_C(1) << 52) - 1);
    const int upper = mantissa >= UINT64_C(0xbb67a) << 32;
    const int middle = mantissa >= UINT64_C(0x3988f) << 32 && !upper;
    const double n = (double)((int)(all >> 52) - 0x3ff + upper - (is_small ? 53 : 0));
    const uint64_t bits = (mantissa | UINT64_C(0x3ff) << 52) - ((uint64_t)upper << 52);
    const double x = f64_from_bits(bits), bp = middle ? 1.5 : 1.0;
    const double dp_h = middle ? 0.5849624872207642 : 0.0, dp_l = middle ? 1.350039202129749e-08 : 0.0;
    const double u = x - bp, v = 1.0 / (x + bp);
    const double ss = u * v;
    const double s_h = own_high(ss);
    const uint64_t sum = ((bits >> 1) | UINT64_C(0x20000000) << 32) + (UINT64_C(0x00080000) << 32);
    const double sum_h = own_high(f64_from_bits(sum + ((uint64_t)middle << 50)));
    const double s_l = v * ((u - s_h * sum_h) - s_h * (x - (sum_h - bp)));
    const double s2 = ss * ss;
    const double r = s2 * s2 * own_poly(s2, c, 6) + s_l * (s_h + ss);
    const double square = s_h * s_h;
    const double t_h = own_high(3.0 + square + r);
    const double t_l = r - ((t_h - 3.0) - square);
    const double product = s_h * t_h, rest = s_l * t_h + t_l * ss;
    const double p_h = own_high(product + rest);
    const double p_l = rest - (p_h - product);
    const double z_h = p_h * 0.9617967009544373;
    const double z_l = p_h * -7.028461650952758e-09 + p_l * 0.9617966939259756 + dp_l;
    const double high = own_high(((z_h + z_l) + dp_h) + n);
    *low = z_l - (((high - n) - dp_h) - z_h);
    return high;
}

/* 2^(high + low) */
static inline double own_exp2(double high, double low) {
    static const double c[5] = {0.16666666666666602, -0.0027777777777015593, 6.613756321437934e-05,
        -1.6533902205465252e-06, 4.1381367970572385e-08};
    const double total = high + low;
    if (total > 1025.0) return INFINITY;
    if (!(total >= -1080.0)) return 0.0;
    const double n = own_rint(total);
    const double rest = high - n;
    const double t = own_high(low + rest);
    const double u = t * 0.6931471824645996;
    const double v = (low - (t - rest)) * 0.6931471805599453 + t * -1.904654299957768e-09;
    const double z = u + v;
    const double w = v - (z - u);
    const double square = z * z;
    const double t1 = z - square * own_poly(square, c, 5);
    const double r = (z * t1) / (t1 - 2.0) - (w + z * w);
    return own_scale(1.0 - (r - z), (int)n);
}

static inline double own_pow(double x, double y) {
    if (y == 0 || x == 1.0) return 1.0;
    if (x != x || y != y) return NAN;
    if (y == 2.0) return x * x;
    if (y == 0.5 && x >= 0) return own_sqrt(own_fabs(x));
    const double a = own_fabs(x);
    const int is_integer = own_trunc(y) == y;
    const int is_odd = is_integer && own_trunc(y * 0.5) != y * 0.5;
    double power;
    if (a == 0 || a > 1.7976931348623157e308) {
        power = (a == 0) == (y > 0) ? 0.0 : INFINITY;
    } else {
        if (x < 0 && !is_integer) return NAN;
        /* Larger exponents give 0, 1 or infinity all the same, and an infinite one would not split. */
        const double limited = y < -1e21 ? -1e21 : y > 1e21 ? 1e21 : y;
        double low;
        const double high = own_log2(a, &low);
        const double y_h = own_high(limited);
        power = own_exp2(y_h * high, (limited - y_h) * high + limited * low);
    }
    return own_signbit(x) && is_odd ? -power : power;
}
