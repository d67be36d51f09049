typedef symshape_error PREFIX_error;
typedef symshape_exec PREFIX_exec;

/* Upper bound of the arena's bytes over all allowed sizes. */
extern const size_t PREFIX_arena_max;

/* Binds the symbols from the inputs' shapes (one array of dims for each input) and writes them to `dims`, or returns
 * non-zero and describes the error in `err`. Reads and writes nothing else. `dims` has N_SYMBOLS + N_DATA_DEPENDENT
 * entries. */
int32_t PREFIX_check(const int64_t *const *input_shapes, int64_t *dims, PREFIX_error *err);

/* Bytes of arena that a call with these dims needs; the dims must have passed the check. */
size_t PREFIX_arena_bytes(const int64_t *dims);

/* Writes the shape of an output at these dims; returns non-zero when there is no such output. A data-dependent
 * size takes its upper bound before the call and its actual value after it. */
int32_t PREFIX_output_shape(uint32_t output, const int64_t *dims, int64_t *shape);

/* Runs the model at dims that passed the check. Inputs and outputs are dense, row-major, aligned to their elements;
 * `arena` is 64-byte aligned memory of PREFIX_arena_bytes(dims) bytes whose content does not matter. Calls of one
 * model may run at once, each with its own arena. A call allocates no memory, takes no lock and makes no system call. */
int32_t PREFIX_run(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena,
                   const PREFIX_exec *exec);

