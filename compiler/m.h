/* block: compiled by symshape 0.1.0.
 *
 * Symbols, in the order of `dims`:
 *   dims[0]  N: 1..=4
 *   dims[1]  S: 1..=9
 * Inputs, dense and row-major:
 *   0  x: f32[N, S, 64]
 * Outputs, dense and row-major:
 *   0  y: f32[N, S, 64]
 *
 * Of the C library the model's source calls, from math.h: erff, expf, signbit, sqrtf.
 */
#ifndef SYMSHAPE_MODEL_BLOCK_H
#define SYMSHAPE_MODEL_BLOCK_H

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
    SYMSHAPE_CONTRADICTION = 6,       /* the shapes of a part of the model contradict the inputs */
    SYMSHAPE_CALLEE_FAILED = 7,       /* a function that the model calls returned the error's `value` */
    SYMSHAPE_NOT_PLANNED = 8,         /* partitions at once, and the arena is not planned for it */
    SYMSHAPE_NO_TILES = 9             /* the model needs tile registers, and they are not there or not granted */
};

/* How the partitions of a model that has some are run. */
enum {
    SYMSHAPE_AUTO = 0,    /* whatever is estimated to be faster for the dims and threads of the call */
    SYMSHAPE_SERIAL = 1,  /* one after another, the kernels of each on all threads */
    SYMSHAPE_PARALLEL = 2 /* those that don't wait for each other at once, each on one thread */
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
    uint32_t policy;  /* SYMSHAPE_AUTO, SYMSHAPE_SERIAL or SYMSHAPE_PARALLEL */
    /* Runs task(data, b, e, w) over disjoint ranges that cover 0..count, and returns when all are done; or null. */
    void (*parallel_for)(void *host, int64_t count, symshape_task task, void *data);
    symshape_error *error; /* where `run` puts its error, or null */
} symshape_exec;

/* What follows is for functions that a model calls: int32_t f(const symshape_call *call), 0 for success. */

/* Element types, numbered as ONNX numbers them. */
enum {
    SYMSHAPE_F32 = 1, SYMSHAPE_U8 = 2, SYMSHAPE_I8 = 3, SYMSHAPE_U16 = 4, SYMSHAPE_I16 = 5, SYMSHAPE_I32 = 6,
    SYMSHAPE_I64 = 7, SYMSHAPE_BOOL = 9, SYMSHAPE_F16 = 10, SYMSHAPE_F64 = 11, SYMSHAPE_U32 = 12,
    SYMSHAPE_U64 = 13, SYMSHAPE_BF16 = 16
};

/* A dense, row-major tensor. */
typedef struct symshape_tensor {
    void *data;           /* its elements; those of inputs are not to be written */
    const int64_t *shape; /* `rank` dims */
    uint32_t dtype;       /* one of SYMSHAPE_F32 and its like */
    uint32_t rank;
} symshape_tensor;

/* What the data of an attribute are. */
enum {
    SYMSHAPE_INTS = 1,   /* int64_t */
    SYMSHAPE_FLOATS = 2, /* float */
    SYMSHAPE_BYTES = 3   /* bytes, and a zero byte behind them */
};

/* A constant of the model. */
typedef struct symshape_attribute {
    const char *name;
    const void *data;
    uint64_t count; /* values or bytes */
    uint32_t kind;  /* SYMSHAPE_INTS or one of the others */
    uint32_t reserved;
} symshape_attribute;

/* What a function is handed. It may use all of it until it returns, keeps nothing, and writes every output whole. */
typedef struct symshape_call {
    const symshape_tensor *inputs;
    const symshape_tensor *outputs; /* disjoint from one another and from the inputs */
    const symshape_attribute *attributes;
    void *scratch; /* memory of the arena, 64-byte aligned, for this call alone; or null */
    uint64_t scratch_bytes;
    void *data;                /* null in artefacts */
    const symshape_exec *exec; /* as given to the model's `run`: its parallel_for may be used; or null */
    uint32_t n_inputs;
    uint32_t n_outputs;
    uint32_t n_attributes;
    uint32_t reserved;
    void *memory; /* where the memory of the target's device begins, in which arguments may lie; null if it has none */
} symshape_call;
/* An entry of a model's table of partitions: kernels that run as one step. */
typedef struct symshape_partition {
    const char *name;
    const char *target; /* what it runs on */
    /* Runs it, when all in `after` have run in this frame; returns non-zero when the call failed. */
    int32_t (*run)(void *frame);
    /* Estimated work on so many threads, in multiplications with addition of a vector unit. */
    int64_t (*cost)(const int64_t *dims, uint32_t threads);
    const char *cost_formula; /* the same for one thread, for people */
    const uint32_t *after;    /* the partitions that must have run before: earlier entries of the table */
    const uint32_t *symbols;  /* the symbols that it uses, as places in `dims` */
    uint32_t n_after;
    uint32_t n_symbols;
    uint32_t stage; /* those of one stage may run at once; earlier stages are done before later ones */
    uint32_t reserved;
} symshape_partition;

#ifdef __cplusplus
}
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of arena that suffice for every allowed size: for static arrays. */
#define BLOCK_ARENA_MAX 46080u
#define BLOCK_ARENA_ALIGN 64u
#define BLOCK_N_SYMBOLS 2
#define BLOCK_N_FOUND 0
#define BLOCK_N_INPUTS 1
#define BLOCK_N_OUTPUTS 1

/* The table of partitions, bytes of a call's frame, and whether partitions may run at once. */
#define BLOCK_N_PARTITIONS 2
#define BLOCK_FRAME_BYTES 128u
#define BLOCK_ANY_ORDER 1

/* The symbol N: its place in `dims`, and its range. */
#define BLOCK_DIM_N 0
#define BLOCK_N_MIN 1
#define BLOCK_N_MAX 4

/* The symbol S: its place in `dims`, and its range. */
#define BLOCK_DIM_S 1
#define BLOCK_S_MIN 1
#define BLOCK_S_MAX 9

/* input x: its place, its axes, and bytes that always suffice. */
#define BLOCK_INPUT_X 0
#define BLOCK_INPUT_X_RANK 3
#define BLOCK_INPUT_X_MAX_BYTES 9216u

/* output y: its place, its axes, and bytes that always suffice. */
#define BLOCK_OUTPUT_Y 0
#define BLOCK_OUTPUT_Y_RANK 3
#define BLOCK_OUTPUT_Y_MAX_BYTES 9216u

typedef symshape_error block_error;
typedef symshape_exec block_exec;

/* Bytes of arena that suffice for every allowed size. */
extern const size_t block_arena_max;

/* Binds the symbols from the inputs' shapes (one array of dims for each input) and writes them to `dims`, or returns
 * non-zero and says in `err` what is wrong. Reads and writes nothing else. `dims` has N_SYMBOLS + N_FOUND places. */
int32_t block_check(const int64_t *const *input_shapes, int64_t *dims, block_error *err);

/* Bytes of arena that a call with these dims needs; the dims must have passed the check. */
size_t block_arena_bytes(const int64_t *dims);

/* Writes the shape of an output at these dims; returns non-zero when there is no such output. A size that is found only
 * while running is at its bound before the call and as it came out after it. */
int32_t block_output_shape(uint32_t output, const int64_t *dims, int64_t *shape);

/* Runs the model at dims that passed the check. Inputs and outputs are dense, row-major, aligned to their elements;
 * `arena` is 64-byte aligned memory of block_arena_bytes(dims) bytes whose content does not matter. Calls of one
 * model may run at once, each with an arena of its own. No memory is allocated, no lock taken, no system called. */
int32_t block_run(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena,
                   const block_exec *exec);

/* The table of partitions, for callers that run them in an order, and on threads, of their own. Such a call is
 *
 *     block_begin(inputs, outputs, dims, arena, exec, frame), then
 *     block_partitions[i].run(frame) once for each i, after all of block_partitions[i].after,
 *
 * where `frame` is BLOCK_FRAME_BYTES bytes at a multiple of 64, and everything that was passed stays until the end. */
extern const symshape_partition block_partitions[BLOCK_N_PARTITIONS];

/* Checks the contract as block_run does, and prepares the frame of one call. `exec` is used by the kernels of each
 * partition: null, or without parallel_for, where partitions run at once. */
int32_t block_begin(const void *const *inputs, void *const *outputs, int64_t *dims, void *arena,
                     const block_exec *exec, void *frame);

/* Writes where a partition's part of the arena begins and ends, in bytes; returns non-zero when there is no such
 * partition. */
int32_t block_arena_slice(uint32_t partition, const int64_t *dims, size_t *slice);

#ifdef BLOCK_STATIC_ARENA
/* As block_run, in an arena of the source file's own; one call at a time. */
int32_t block_run_static(const void *const *inputs, void *const *outputs, int64_t *dims,
                          const block_exec *exec);
#endif

#ifdef __cplusplus
}
#endif
#endif
