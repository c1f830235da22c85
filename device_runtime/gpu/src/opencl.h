/* OpenCL, loaded when the program runs: a table of its functions. */
#ifndef HVDC_GPU_OPENCL_H
#define HVDC_GPU_OPENCL_H

#include <stdbool.h>

#include "hvdc/failure.h"
#include "opencl_api.h"

typedef struct hvdc_opencl {
    void *library;
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a type and a list of parameters */
#define HVDC_OPENCL_MEMBER(result, name, arguments) result(*name) arguments;
    HVDC_OPENCL_FUNCTIONS(HVDC_OPENCL_MEMBER)
    HVDC_OPENCL_OPTIONAL_FUNCTIONS(HVDC_OPENCL_MEMBER)
#undef HVDC_OPENCL_MEMBER
} hvdc_opencl;

/* `path` names the library; NULL looks where systems keep it. Optional functions of `hvdc_opencl` that the library does
 * not export are asked of a platform by hvdc_opencl_extend. The library stays loaded: a driver's threads may run its code
 * until the process ends. */
bool hvdc_opencl_load(const char *path, hvdc_opencl *cl, hvdc_failure *failure);
void hvdc_opencl_extend(hvdc_opencl *cl, cl_platform_id platform);

/* Fails with what was asked for, say "to create a context", and the name of the code; out of memory is of that kind. */
bool hvdc_opencl_fail(hvdc_failure *failure, cl_int code, const char *what);

#endif
