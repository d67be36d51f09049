/* The partition table, for callers that choose the order and the threads. Such a call is
 *
 *     PREFIX_begin(inputs, outputs, dims, arena, exec, frame), then
 *     PREFIX_partitions[i].run(frame) once for each i, after all of PREFIX_partitions[i].after,
 *
 * where `frame` is UPPER_FRAME_BYTES bytes at a multiple of 64, and all arguments stay valid until the end. */
extern const symshape_partition PREFIX_partitions[UPPER_N_PARTITIONS];

/* Checks the call contract as PREFIX_run does, and prepares the frame of one call. The kernels of each partition use
 * `exec`; if partitions run at once, it must be null or have no parallel_for. */
int32_t PREFIX_begin(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena,
                     const PREFIX_exec *exec, void *frame);

/* Writes the begin and end of a partition's part of the arena, in bytes; returns non-zero if there is no such
 * partition. */
int32_t PREFIX_arena_slice(uint32_t partition, const int64_t *dims, size_t *slice);

