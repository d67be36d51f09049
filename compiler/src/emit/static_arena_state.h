#ifdef UPPER_STATIC_ARENA
/* As PREFIX_run_stateful, in a static arena of the source file; one call at a time. */
int32_t PREFIX_run_stateful_static(const void *const *inputs, void *const *outputs, void *const *states,
                                   uint32_t n_states, int64_t *dims, const PREFIX_exec *exec);
#endif

