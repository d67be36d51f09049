/* The smallest work that is worth sharing between threads, in units of cost. */
#define MIN_WORK 200000

static int is_at_once(const struct PREFIX_call *call, uint32_t first, uint32_t last) {
    const symshape_exec *const exec = call->exec;
    int64_t work = 0;
    if (last - first < 2 || exec == NULL || exec->parallel_for == NULL) return 0;
    if (exec->policy != SYMSHAPE_AUTO) return exec->policy == SYMSHAPE_PARALLEL;
    for (uint32_t i = first; i < last && work < MIN_WORK; i++) work += PREFIX_partitions[i].cost(call->dims, 1);
    return exec->threads > 1 && work >= MIN_WORK;
}

static void run_ready(void *data, int64_t begin, int64_t end, uint32_t worker) {
    struct PREFIX_call *const call = data;
    (void)worker;
    for (int64_t i = begin; i < end; i++) (void)PREFIX_partitions[call->ready[i]].run(call);
}

/* Runs a stage in waves: each wave runs all partitions that are ready, at once. Returns the code of the first partition
 * that fails. */
static int32_t run_at_once(struct PREFIX_call *call, uint32_t first, uint32_t last) {
    const symshape_exec *const exec = call->exec;
    for (uint32_t left = last - first; left > 0 && call->code == 0; left -= call->n_ready) {
        call->n_ready = 0;
        for (uint32_t i = first; i < last; i++) {
            const symshape_partition *const partition = &PREFIX_partitions[i];
            int is_ready = !call->is_done[i];
            for (uint32_t k = 0; k < partition->n_after; k++)
                is_ready = is_ready && (partition->after[k] < first || call->is_done[partition->after[k]]);
            if (is_ready) call->ready[call->n_ready++] = i;
        }
        /* Only this function uses the host's threads during a wave. */
        call->exec = NULL;
        exec->parallel_for(exec->host, call->n_ready, run_ready, call);
        call->exec = exec;
        for (uint32_t i = 0; i < call->n_ready; i++) call->is_done[call->ready[i]] = 1;
    }
    return call->code;
}

