/* The call of case.h, and the comparison of its results, for programs without an operating system. */
static int differs(void) {
    int64_t dims[CASE_N_DIMS];
    symshape_error error;
    if (CASE_CHECK(case_too_large, dims, &error) == 0) return 2;
    if (CASE_CHECK(case_shapes, dims, &error) != 0) return 3;
    static float results[CASE_RESULTS + 1];
    void *const outputs[1] = {results};
    const void *const inputs[1] = {case_input};
    if (CASE_RUN(inputs, outputs, dims, NULL) != 0) return 4;
    for (int i = 0; i < CASE_RESULTS; i++) {
        const float distance = results[i] - case_results[i];
        if (!(distance < 1e-4f && distance > -1e-4f)) return 5;
    }
    return 0;
}
