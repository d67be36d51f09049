
/* What the partitions of one call share. */
struct PREFIX_call {
    const void *const *inputs;
    void *const *outputs;
    int64_t *dims;
    void *arena;
    const symshape_exec *exec; /* what functions that partitions call may use */
    symshape_error *error;     /* where the first error goes, or null */
    atomic_flag has_failed;
    int32_t code; /* of the first error; written by whoever sets the flag */
    uint32_t n_ready;
    uint32_t ready[UPPER_N_PARTITIONS];
    unsigned char is_done[UPPER_N_PARTITIONS];
};

_Static_assert(sizeof(struct PREFIX_call) <= UPPER_FRAME_BYTES, "the frame is as large as the header says");

/* The code of a partition; if it is the first to fail, its error is the call's. */
static int32_t ended(struct PREFIX_call *call, int32_t code, const symshape_error *error) {
    if (code != 0 && !atomic_flag_test_and_set(&call->has_failed)) {
        call->code = code;
        if (call->error != NULL) *call->error = *error;
    }
    return code;
}

