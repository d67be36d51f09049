#ifdef UPPER_STATIC_ARENA
/* As PREFIX_run, in a static arena of the source file; one call at a time. */
int32_t PREFIX_run_static(const void *const *inputs, void *const *outputs, int64_t *dims,
                          const PREFIX_exec *exec);
#endif

