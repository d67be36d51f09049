/* State: the tensors that calls keep. A state is one block of memory at a multiple of UPPER_STATE_ALIGN, with a header,
 * words for its sizes, and the tensors. It has no pointers: to copy the block is to copy the state. */

/* The tensors of the state in order, each with the input and the output that it replaces:
TENSOR_LINES */

/* Upper bound of the bytes of a state over all allowed sizes. */
#define UPPER_STATE_MAX BYTES_BOUNDu
#define UPPER_STATE_ALIGN 64u
/* A hash of the model, which the header of each state repeats. */
#define UPPER_STATE_ID UINT64_C(HASH_VALUE)
#define UPPER_N_STATE_TENSORS TENSOR_COUNT
#define UPPER_N_STATE_WORDS WORD_COUNT

/* Bytes of a state with these dims. Reads only the dims whose values are words of the header:
WORD_COMMENT */
size_t PREFIX_state_bytes(const int64_t *dims);

/* Writes the byte offset of a tensor in a state with these dims, then its dims in memory. It is dense and row-major. */
int32_t PREFIX_state_place(uint32_t tensor, const int64_t *dims, int64_t *place);

STATES_COMMENT
#define UPPER_STATES_MAX STATES_BOUNDu

/* As PREFIX_run, with the `n_states` states at `states`. PREFIX_check takes PREFIX_states_words(states, n_states, words)
 * as the shape of one more input. The call reads the states and writes the new rows, the overwritten tensors and the
 * length of each, and nothing else of them. A state that does not fit is refused before the first store. A call that
 * fails leaves the lengths and the overwritten tensors as they were.
 *
 * With one state, it may be that of a batch. With several, each is that of one sequence, whose row in every tensor is
 * the index of the state. All sequences get the same number of new rows. Each has the bits that it has alone. An input
 * whose shape has the length has that of the longest sequence; others have their rows at the beginning of their share. */
int32_t PREFIX_run_stateful(const void *const *inputs, void *const *outputs, void *const *states, uint32_t n_states,
                            int64_t *dims, void *arena, const PREFIX_exec *exec);

/* The words of a state: the shape of one more input for PREFIX_check. */
static inline const int64_t *PREFIX_state_words(const void *state) {
    return (const int64_t *)((const unsigned char *)state + sizeof(symshape_state_header));
}

/* The shape of one more input for PREFIX_check of a call with these states, at least one: the words of the only state, or
 * `words` with the sizes of all of them. */
static inline const int64_t *PREFIX_states_words(const void *const *states, uint32_t n_states, int64_t *words) {
    const int64_t *const first = PREFIX_state_words(states[0]);
    if (n_states == 1) return first;
    for (uint32_t word = 0; word < UPPER_N_STATE_WORDS; word++) words[word] = first[word];
MERGED_WORDS    return words;
}

/* Forgets everything: no rows, and zeros in the overwritten tensors. */
static inline void PREFIX_state_reset(void *state) {
    static const unsigned char is_overwritten[] = {OVERWRITTEN};
    static const uint32_t element_bytes[] = {ELEMENT_BYTES};
    static const uint32_t ranks[] = {RANKS};
    static const uint32_t symbols[] = {WORD_SYMBOLS};
    int64_t dims[UPPER_N_SYMBOLS + UPPER_N_DATA_DEPENDENT + 1] = {0};
    int64_t place[MAX_PLACE];
    for (uint32_t word = 0; word < UPPER_N_STATE_WORDS; word++) dims[symbols[word]] = PREFIX_state_words(state)[word];
    for (uint32_t tensor = 0; tensor < UPPER_N_STATE_TENSORS; tensor++) {
        if (!is_overwritten[tensor] || PREFIX_state_place(tensor, dims, place) != 0) continue;
        int64_t bytes = element_bytes[tensor];
        for (uint32_t axis = 0; axis < ranks[tensor]; axis++) bytes *= place[1 + axis];
        for (int64_t at = 0; at < bytes; at++) ((unsigned char *)state)[place[0] + at] = 0;
    }
RESET_LENGTH}

/* Makes the `PREFIX_state_bytes(dims)` bytes at `state` an empty state with the sizes in `dims`. */
static inline void PREFIX_state_init(void *state, const int64_t *dims) {
    static const uint32_t symbols[] = {WORD_SYMBOLS};
    symshape_state_header *const header = (symshape_state_header *)state;
    int64_t *const words = (int64_t *)((unsigned char *)state + sizeof(symshape_state_header));
    header->magic = SYMSHAPE_STATE_MAGIC;
    header->id = UPPER_STATE_ID;
    header->bytes = PREFIX_state_bytes(dims);
    header->reserved = 0;
    for (uint32_t word = 0; word < UPPER_N_STATE_WORDS; word++) words[word] = dims[symbols[word]];
    PREFIX_state_reset(state);
}

/* Whether the `bytes` bytes at `state`, such as those of a file, are a state of this model. */
static inline int PREFIX_state_is_valid(const void *state, size_t bytes) {
    static const uint32_t symbols[] = {WORD_SYMBOLS};
    static const int64_t lo[] = {WORD_LO}, hi[] = {WORD_HI};
    int64_t dims[UPPER_N_SYMBOLS + UPPER_N_DATA_DEPENDENT + 1] = {0};
    const symshape_state_header *const header = (const symshape_state_header *)state;
    if (bytes < sizeof *header + 8 * UPPER_N_STATE_WORDS) return 0;
    if (header->magic != SYMSHAPE_STATE_MAGIC || header->id != UPPER_STATE_ID || header->bytes != bytes) return 0;
    for (uint32_t word = 0; word < UPPER_N_STATE_WORDS; word++) {
        const int64_t value = PREFIX_state_words(state)[word];
        if (value < lo[word] || value > hi[word]) return 0;
        dims[symbols[word]] = value;
    }
    return PREFIX_state_bytes(dims) == bytesVALID_LENGTH;
}
ROW_FUNCTIONS
