
/* The weights are not in this object: they are a weights file, which calls read in memory. Its address is one more
 * input of every call: `inputs` has UPPER_N_INPUTS + 1 entries, of which the last is the address. It must be a multiple
 * of 64. Calls only read the weights, so threads and processes may share them, in flash or mapped from the file. */
#define UPPER_HAS_WEIGHTS 1

/* Calls read only so many bytes of the weights file. The table of its weights follows them. */
#define UPPER_WEIGHTS_BYTES FILE_BYTESu

/* Returns 1 if these `bytes` bytes are the weights of this model, and 0 if not. There may be more bytes than calls read.
 * Only their beginning, their size and their address are checked, which is enough for a call to stay inside of them;
 * `symc verify` checks all bytes. */
static inline int PREFIX_has_weights(const void *weights, size_t bytes) {
    static const unsigned char magic[12] = {MAGIC_BYTES};
    static const unsigned char artefact[32] = {ARTEFACT_BYTES};
    const unsigned char *at = (const unsigned char *)weights;
    if (weights == NULL || (uintptr_t)weights % 64 != 0 || bytes < UPPER_WEIGHTS_BYTES) return 0;
    for (int i = 0; i < 12; i++) if (at[i] != magic[i]) return 0;
    for (int i = 0; i < 32; i++) if (at[ARTEFACT_OFFSET + i] != artefact[i]) return 0;
    return 1;
}
