/* The error function, by the rational approximations of FreeBSD's msun (Sun Microsystems, 1993). From 1.25 on it is
 * 1 - exp(-a^2 - 0.5625 + R/S) / a; the square is split so that its rounding has no effect. */
static inline double own_erf_tail(double a) {
    static const double ra[8] = {-0.009864944034847148, -0.6938585727071818, -10.558626225323291,
        -62.375332450326006, -162.39666946257347, -184.60509290671104, -81.2874355063066, -9.814329344169145};
    static const double sa[9] = {1.0, 19.651271667439257, 137.65775414351904, 434.56587747522923,
        645.3872717332679, 429.00814002756783, 108.63500554177944, 6.570249770319282, -0.0604244152148581};
    static const double rb[7] = {-0.0098649429247001, -0.799283237680523, -17.757954917754752, -160.63638485582192,
        -637.5664433683896, -1025.0951316110772, -483.5191916086514};
    static const double sb[8] = {1.0, 30.33806074348246, 325.7925129965739, 1536.729586084437, 3199.8582195085955,
        2553.0504064331644, 474.52854120695537, -22.44095244658582};
    const double s = 1.0 / (a * a);
    const int is_inner = a < 1.0 / 0.35;
    const double ratio = is_inner ? own_poly(s, ra, 8) / own_poly(s, sa, 9) : own_poly(s, rb, 7) / own_poly(s, sb, 8);
    const double z = own_high(a);
    return 1.0 - own_exp(-z * z - 0.5625) * own_exp((z - a) * (z + a) + ratio) / a;
}

static inline double own_erf(double x) {
    static const double pp[5] = {0.12837916709551256, -0.3250421072470015, -0.02848174957559851,
        -0.005770270296489442, -2.3763016656650163e-05};
    static const double qq[6] = {1.0, 0.39791722395915535, 0.0650222499887673, 0.005081306281875766,
        0.00013249473800432164, -3.960228278775368e-06};
    static const double pa[7] = {-0.0023621185607526594, 0.41485611868374833, -0.3722078760357013,
        0.31834661990116175, -0.11089469428239668, 0.035478304325618236, -0.002166375594868791};
    static const double qa[7] = {1.0, 0.10642088040084423, 0.540397917702171, 0.07182865441419627,
        0.12617121980876164, 0.01363708391202905, 0.011984499846799107};
    const double a = own_fabs(x);
    if (a != a) return x;
    if (a >= 6.0) return own_copysign(1.0, x);
    if (a >= 1.25) return own_copysign(own_erf_tail(a), x);
    if (a >= 0.84375) {
        const double s = a - 1.0;
        return own_copysign(own_poly(s, pa, 7) / own_poly(s, qa, 7) + 0.8450629115104675, x);
    }
    const double z = a * a;
    return own_copysign(a + a * (own_poly(z, pp, 5) / own_poly(z, qq, 6)), x);
}
