/* A program without an operating system. It calls the model of model.h in the model's static arena, and compares the
 * results with those in case.h. */
#include "case.h"
#include "case_call.h"
#include "cortex_m.h"

static void start(void) {
    leave((uint32_t)differs());
}
