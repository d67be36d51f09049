/* Functions of single precision without branches, so that C compilers compute several elements at once. e^x is
 * 2^k * e^r with |r| <= ln(2)/2; the sum with 1.5 * 2^23 rounds to an integer and has k in its last bits. */
static inline float single_exp(float x) {
    const float above = x < -104.0f ? -104.0f : x;
    const float a = above > 89.0f ? 89.0f : above;
    const float shifted = a * 1.44269502f + 12582912.0f;
    const float k = shifted - 12582912.0f;
    const float r = (a - k * 0.693145752f) - k * 1.42860677e-6f;
    float p = r * 1.98756912e-4f + 1.39819994e-3f;
    p = p * r + 8.33345205e-3f;
    p = p * r + 4.16657962e-2f;
    p = p * r + 1.66666657e-1f;
    p = p * r + 0.5f;
    p = (p * r) * r + r + 1.0f;
    /* Two factors, because 2^k may be too large or too small for a normal number. */
    const int32_t n = (int32_t)(bits_from_f32(shifted) - UINT32_C(0x4b400000));
    const int32_t half = n >> 1;
    const float low = f32_from_bits((uint32_t)(half + 127) << 23);
    const float high = f32_from_bits((uint32_t)(n - half + 127) << 23);
    return p * low * high;
}

static inline float single_copysign(float x, float sign) {
    return f32_from_bits((bits_from_f32(x) & UINT32_C(0x7fffffff)) | (bits_from_f32(sign) & UINT32_C(0x80000000)));
}

/* A polynomial near zero, and 1 - 2 / (e^2x + 1). */
static inline float single_tanh(float x) {
    const float a = single_copysign(x, 0.0f);
    const float z = x * x;
    float p = z * -5.70498873e-3f + 2.06390880e-2f;
    p = p * z - 5.37397154e-2f;
    p = p * z + 1.33314416e-1f;
    p = p * z - 3.33332807e-1f;
    const float small = p * z * x + x;
    const float large = 1.0f - 2.0f / (single_exp(a + a) + 1.0f);
    return single_copysign(a < 0.625f ? small : large, x);
}

/* A polynomial near zero, and 1 - e^p(|x|). */
static inline float single_erf(float x) {
    const float magnitude = single_copysign(x, 0.0f);
    const float a = magnitude > 4.0f ? 4.0f : magnitude;
    const float z = a * a;
    float p = z * -5.96761703e-4f + 4.99119423e-3f;
    p = p * z - 2.67681349e-2f;
    p = p * z + 1.12819925e-1f;
    p = p * z - 3.76125336e-1f;
    p = p * z + 1.28379166e-1f;
    const float small = p * x + x;
    float q = (a * -1.72853470e-5f + 3.83197126e-4f) * z + (a * -3.88396438e-3f + 2.42546219e-2f);
    q = q * a - 1.06777877e-1f;
    q = q * a - 6.34846687e-1f;
    q = q * a - 1.28717512e-1f;
    q = q * a - a;
    const float large = single_copysign(1.0f - single_exp(q), x);
    return a < 0.921875f ? small : large;
}
