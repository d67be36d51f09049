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
    SYMSHAPE_OUT_OF_RANGE = 1,        /* a symbol's value is outside its declared range */
    SYMSHAPE_NOT_ALLOWED = 2,         /* in range, but breaks its step or is not one of its values */
    SYMSHAPE_MISMATCH = 3,            /* two places give a symbol or a derived dim different values */
    SYMSHAPE_FACT_BROKEN = 4,         /* a fact declared about several symbols does not hold */
    SYMSHAPE_INDEX_OUT_OF_BOUNDS = 5, /* an index in the data is out of bounds */
    SYMSHAPE_CONTRADICTION = 6,       /* the shapes of a part of the model contradict the inputs */
    SYMSHAPE_CALLEE_FAILED = 7,       /* an external function returned the error's `value` */
    SYMSHAPE_NOT_PLANNED = 8,         /* the arena is not planned for partitions that run at once */
    SYMSHAPE_NO_TILES = 9,            /* the model needs tile registers; the machine lacks or the system refused them */
    SYMSHAPE_WRONG_STATE = 10,        /* a state belongs to another artefact, is damaged, or has other sizes */
    SYMSHAPE_STATE_FULL = 11,         /* the rows after the call would exceed the capacity of the state */
    SYMSHAPE_WRONG_WEIGHTS = 12       /* the weights are missing, or belong to another artefact */
};

/* How the partitions of a model run, if it has any. */
enum {
    SYMSHAPE_AUTO = 0,    /* the policy that is estimated to be faster for the dims and threads of the call */
    SYMSHAPE_SERIAL = 1,  /* one after another, the kernels of each on all threads */
    SYMSHAPE_PARALLEL = 2 /* independent partitions at once, each on one thread */
};

/* The error of a call. Strings live as long as the model; those that do not apply are null. */
typedef struct symshape_error {
    int32_t code;
    uint32_t tensor; /* index of the input, or UINT32_MAX */
    uint32_t axis;   /* axis of that input; or the place of the refused state in a call with several, from 1 on */
    uint32_t symbol; /* index of the symbol, or UINT32_MAX */
    int64_t value;   /* the actual value */
    int64_t lo;      /* smallest value allowed */
    int64_t hi;      /* largest value allowed */
    const char *symbol_name; /* the symbol's name, or the derived dim's text */
    const char *tensor_name; /* the tensor's or node's name */
    const char *why;         /* the declaration that is violated, and its place */
} symshape_error;

/* A task of a parallel loop: iterations begin..end, run by worker `worker`. */
typedef void (*symshape_task)(void *data, int64_t begin, int64_t end, uint32_t worker);

/* How the host runs a call. A null pointer to this struct means serial execution, without details of errors. */
typedef struct symshape_exec {
    void *host;       /* passed back to parallel_for */
    uint32_t threads; /* workers that may run at once, at least 1; worker ids are smaller, and a worker runs one task at a time */
    uint32_t policy;  /* SYMSHAPE_AUTO, SYMSHAPE_SERIAL or SYMSHAPE_PARALLEL */
    /* Runs task(data, b, e, w) over disjoint ranges that cover 0..count, and returns when all are done. Null: serial execution. */
    void (*parallel_for)(void *host, int64_t count, symshape_task task, void *data);
    symshape_error *error; /* receives the error of `run`, or null */
} symshape_exec;

/* The beginning of a state, see `run_stateful`. Words with its sizes follow. */
typedef struct symshape_state_header {
    uint64_t magic; /* SYMSHAPE_STATE_MAGIC */
    uint64_t id;    /* a hash of the model */
    uint64_t bytes; /* bytes of the whole state */
    uint64_t reserved;
} symshape_state_header;

/* The bytes "symstate", read as a little-endian integer. */
#define SYMSHAPE_STATE_MAGIC UINT64_C(0x65746174736d7973)

/* For external functions: int32_t f(const symshape_call *call), which returns 0 for success. */

/* Element types, numbered as ONNX numbers them. */
enum {
    SYMSHAPE_F32 = 1, SYMSHAPE_U8 = 2, SYMSHAPE_I8 = 3, SYMSHAPE_U16 = 4, SYMSHAPE_I16 = 5, SYMSHAPE_I32 = 6,
    SYMSHAPE_I64 = 7, SYMSHAPE_BOOL = 9, SYMSHAPE_F16 = 10, SYMSHAPE_F64 = 11, SYMSHAPE_U32 = 12,
    SYMSHAPE_U64 = 13, SYMSHAPE_BF16 = 16
};

/* A dense, row-major tensor. */
typedef struct symshape_tensor {
    void *data;           /* its elements; the elements of inputs must not be written */
    const int64_t *shape; /* `rank` dims */
    uint32_t dtype;       /* an element type, such as SYMSHAPE_F32 */
    uint32_t rank;
} symshape_tensor;

/* The type of an attribute's data. */
enum {
    SYMSHAPE_INTS = 1,   /* int64_t */
    SYMSHAPE_FLOATS = 2, /* float */
    SYMSHAPE_BYTES = 3   /* bytes, followed by a zero byte */
};

/* A constant of the model. */
typedef struct symshape_attribute {
    const char *name;
    const void *data;
    uint64_t count; /* number of values or bytes */
    uint32_t kind;  /* SYMSHAPE_INTS, SYMSHAPE_FLOATS or SYMSHAPE_BYTES */
    uint32_t reserved;
} symshape_attribute;

/* The argument of an external function. The function may use it until it returns, and must write every element of
 * every output. */
typedef struct symshape_call {
    const symshape_tensor *inputs;
    const symshape_tensor *outputs; /* disjoint from each other and from the inputs */
    const symshape_attribute *attributes;
    void *scratch; /* memory of the arena, 64-byte aligned, for this call alone; or null */
    uint64_t scratch_bytes;
    void *data;                /* null in artefacts */
    const symshape_exec *exec; /* as passed to the model's `run`; its parallel_for may be used; or null */
    uint32_t n_inputs;
    uint32_t n_outputs;
    uint32_t n_attributes;
    uint32_t reserved;
    void *memory; /* start of the device memory of the target, which may hold arguments; null if it has none */
} symshape_call;
/* An entry of a model's partition table: kernels that run as one step. */
typedef struct symshape_partition {
    const char *name;
    const char *target; /* the target that runs it */
    /* Runs it; all partitions in `after` must have run in this frame. Returns non-zero if the call failed. */
    int32_t (*run)(void *frame);
    /* Estimated work on `threads` threads, in vector multiply-adds. */
    int64_t (*cost)(const int64_t *dims, uint32_t threads);
    const char *cost_formula; /* the cost on one thread, as a readable formula */
    const uint32_t *after;    /* the partitions that must run before it: earlier entries of the table */
    const uint32_t *symbols;  /* the symbols that it uses, as indices into `dims` */
    uint32_t n_after;
    uint32_t n_symbols;
    uint32_t stage; /* partitions of one stage may run at once; earlier stages end before later ones begin */
    /* How many calls of `target` may run at once; 0 for any number. Within a call of the model, `after` keeps to it;
     * contexts and models that share a device must take turns. */
    uint32_t at_once;
} symshape_partition;

#ifdef __cplusplus
}
#endif
#endif
