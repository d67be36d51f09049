
/* The state that all partitions of one call share. */
struct PREFIX_call {
    const void *const *inputs;
    void *const *outputs;
    int64_t *dims;
    void *arena;
    const symshape_exec *exec; /* the host's interface, for external functions; null while partitions run at once */
    symshape_error *error;     /* receives the first error, or null */
    atomic_flag has_failed;
    int32_t code; /* of the first error; written by the partition that sets the flag */
    uint32_t n_ready;
    uint32_t ready[UPPER_N_PARTITIONS];
    unsigned char is_done[UPPER_N_PARTITIONS];
};

_Static_assert(sizeof(struct PREFIX_call) <= UPPER_FRAME_BYTES, "the frame must fit in the bytes that the header states");

/* Ends a partition: the error of the first partition that fails becomes the error of the call. */
static int32_t ended(struct PREFIX_call *call, int32_t code, const symshape_error *error) {
    if (code != 0 && !atomic_flag_test_and_set(&call->has_failed)) {
        call->code = code;
        if (call->error != NULL) *call->error = *error;
    }
    return code;
}

