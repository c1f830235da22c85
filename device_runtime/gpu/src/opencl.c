#include "opencl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Linux, then Android, where an app's namespace sees the vendor's library by its bare name. */
static const char *const NAMES[] = {"libOpenCL.so.1", "libOpenCL.so", "/vendor/lib64/libOpenCL.so"};

/* ISO C has no conversion of an object pointer to a function pointer; POSIX asks for this one. */
static void resolve(void *library, const char *name, void *slot) {
    void *address = dlsym(library, name);
    memcpy(slot, &address, sizeof address);
}

bool hvdc_opencl_load(const char *path, hvdc_opencl *cl, hvdc_failure *failure) {
    memset(cl, 0, sizeof *cl);
    const char *tried = path;
    if (path != NULL) {
        cl->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    for (size_t i = 0; path == NULL && cl->library == NULL && i < sizeof NAMES / sizeof NAMES[0]; ++i) {
        tried = NAMES[0];
        cl->library = dlopen(NAMES[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (cl->library == NULL) {
        const char *why = dlerror();
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                         "OpenCL cannot be loaded (%s): %s; install a driver with its loader (on Debian: "
                         "ocl-icd-libopencl1 and pocl-opencl-icd), or run on the NPU alone",
                         tried, why == NULL ? "no reason given" : why);
    }
#define HVDC_RESOLVE(result, name, arguments) resolve(cl->library, #name, &cl->name);
    HVDC_OPENCL_FUNCTIONS(HVDC_RESOLVE)
    HVDC_OPENCL_OPTIONAL_FUNCTIONS(HVDC_RESOLVE)
#undef HVDC_RESOLVE
    const char *missing = NULL;
#define HVDC_CHECK(result, name, arguments) missing = cl->name == NULL ? #name : missing;
    HVDC_OPENCL_FUNCTIONS(HVDC_CHECK)
#undef HVDC_CHECK
    if (missing != NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                         "%s has no function %s: it is older than OpenCL 1.2, or another library; name a right one",
                         tried, missing);
    }
    return true;
}

void hvdc_opencl_extend(hvdc_opencl *cl, cl_platform_id platform) {
    void *address;
#define HVDC_EXTEND(result, name, arguments) \
    address = cl->clGetExtensionFunctionAddressForPlatform(platform, #name); \
    if (cl->name == NULL && address != NULL) { \
        memcpy(&cl->name, &address, sizeof address); \
    }
    HVDC_OPENCL_OPTIONAL_FUNCTIONS(HVDC_EXTEND)
#undef HVDC_EXTEND
}

bool hvdc_opencl_fail(hvdc_failure *failure, cl_int code, const char *what) {
    enum hvdc_failure_kind kind = HVDC_FAILURE_DEVICE;
    const char *name = "OpenCL error";
    switch (code) {
        case CL_DEVICE_NOT_FOUND: name = "CL_DEVICE_NOT_FOUND"; break;
        case CL_BUILD_PROGRAM_FAILURE: name = "CL_BUILD_PROGRAM_FAILURE"; break;
        case CL_MEM_OBJECT_ALLOCATION_FAILURE:
            name = "CL_MEM_OBJECT_ALLOCATION_FAILURE", kind = HVDC_FAILURE_MEMORY;
            break;
        case CL_OUT_OF_RESOURCES: name = "CL_OUT_OF_RESOURCES", kind = HVDC_FAILURE_MEMORY; break;
        case CL_OUT_OF_HOST_MEMORY: name = "CL_OUT_OF_HOST_MEMORY", kind = HVDC_FAILURE_MEMORY; break;
        case CL_INVALID_BUFFER_SIZE: name = "CL_INVALID_BUFFER_SIZE", kind = HVDC_FAILURE_MEMORY; break;
        default: break;
    }
    return hvdc_fail(failure, kind, "the GPU's driver refused %s: %s (%d)", what, name, (int)code);
}
