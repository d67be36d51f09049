/* The bits of floats, and the floats of these bits. */
static inline uint32_t bits_from_f32(float value) {
    union { uint32_t bits; float value; } number;
    number.value = value;
    return number.bits;
}

static inline float f32_from_bits(uint32_t bits) {
    union { uint32_t bits; float value; } number;
    number.bits = bits;
    return number.value;
}

static inline uint64_t bits_from_f64(double value) {
    union { uint64_t bits; double value; } number;
    number.value = value;
    return number.bits;
}

static inline double f64_from_bits(uint64_t bits) {
    union { uint64_t bits; double value; } number;
    number.bits = bits;
    return number.value;
}
