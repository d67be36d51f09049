
#ifndef SYMSHAPE_REQUEST
#define SYMSHAPE_REQUEST
/* A request: some rows, dense and row-major. An input without the symbol of the rows is shared by all requests. */
typedef struct symshape_request {
    const int64_t *const *shapes; /* the shape of each input, as for the model's `check` */
    const void *const *inputs;
    void *const *outputs;
} symshape_request;
#endif
