#include <stddef.h>
#include <stdint.h>

#ifndef SYMSHAPE_ABI_H
#define SYMSHAPE_ABI_H

#ifdef __cplusplus
extern "C" {
#endif

/* Return codes; 0 is success. */
enum {
    SYMSHAPE_OK = 0,
    SYMSHAPE_OUT_OF_RANGE = 1,        /* a symbol's value lies outside its declared range */
    SYMSHAPE_NOT_ALLOWED = 2,         /* in range, but breaks its step or is none of its values */
    SYMSHAPE_MISMATCH = 3,            /* two places give a symbol or a derived dim different values */
    SYMSHAPE_FACT_BROKEN = 4,         /* a fact declared about several symbols does not hold */
    SYMSHAPE_INDEX_OUT_OF_BOUNDS = 5, /* met while running: an index in the data addresses nothing */
    SYMSHAPE_CONTRADICTION = 6        /* the shapes of a part of the model contradict the inputs */
};

/* What went wrong. The strings live as long as the model; those that do not apply are null. */
typedef struct symshape_error {
    int32_t code;
    uint32_t tensor; /* index of the input, or UINT32_MAX */
    uint32_t axis;   /* its axis, or UINT32_MAX */
    uint32_t symbol; /* index of the symbol, or UINT32_MAX */
    int64_t value;   /* the value met */
    int64_t lo;      /* lowest value allowed */
    int64_t hi;      /* highest value allowed */
    const char *symbol_name; /* the symbol's name, or the derived dim's text */
    const char *tensor_name; /* the tensor's or node's name */
    const char *why;         /* what is declared, and where */
} symshape_error;

/* A task of a parallel loop: iterations begin..end, run by worker `worker`. */
typedef void (*symshape_task)(void *data, int64_t begin, int64_t end, uint32_t worker);

/* How the host runs a call. A null pointer in its place means: serially, and without details of errors. */
typedef struct symshape_exec {
    void *host;       /* passed back to parallel_for */
    uint32_t threads; /* workers that may run at once, at least 1; worker ids are below it */
    /* Runs task(data, b, e, w) over disjoint ranges that cover 0..count, and returns when all are done; or null. */
    void (*parallel_for)(void *host, int64_t count, symshape_task task, void *data);
    symshape_error *error; /* where `run` puts its error, or null */
} symshape_exec;

#ifdef __cplusplus
}
#endif
#endif
