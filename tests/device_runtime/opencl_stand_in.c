/* A libOpenCL.so that records what it is asked, for ways of importing memory whose drivers are not at hand. It proves what the
 * engine passes, not what a driver makes of it.
 *
 * Its one device executes the kernel `copy_words` alone. STAND_IN_EXTENSIONS: what the device lists. STAND_IN_SHARES:
 * "kind" or "kind:policy" for which an import shares memory (khr, dmabuf, ion, ahb, arm, host); any other import copies, as
 * a driver that lies would. STAND_IN_PLATFORMS, STAND_IN_DEVICES: how many there are, 1 if not given. STAND_IN_LOG: a file
 * for a line for each import, acquire and release.
 * STAND_IN_WRONG: copies of less than a page have a wrong bit. */
#include "opencl_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))
#define ARGUMENTS 4

struct _cl_mem {
    uint8_t *data;
    size_t bytes;
    int owned, mapped;
};
struct _cl_kernel {
    union {
        cl_mem memory;
        cl_uint number;
    } arguments[ARGUMENTS];
};

static int things; /* something to point at */
#define THING ((void *)&things)

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value == NULL ? otherwise : value;
}

static FILE *log_file(void) {
    FILE *file = fopen(setting("STAND_IN_LOG", "/dev/null"), "a");
    if (file == NULL) {
        abort();
    }
    return file;
}

static void log_line(const char *what, uint64_t flags, uint64_t bytes, const void *object, size_t object_bytes) {
    FILE *file = log_file();
    fprintf(file, "%s %llu %llu ", what, (unsigned long long)flags, (unsigned long long)bytes);
    for (size_t i = 0; i < object_bytes; ++i) {
        fprintf(file, "%02x", ((const uint8_t *)object)[i]);
    }
    fputc('\n', file);
    fclose(file);
}

/* Memory that is shared if this kind and policy are said to, else a copy of it. */
static cl_mem imported(const char *kind, cl_uint policy, void *host, int fd, size_t bytes) {
    char name[32], with_policy[32];
    cl_mem memory = calloc(1, sizeof *memory);
    snprintf(name, sizeof name, "%s", kind);
    snprintf(with_policy, sizeof with_policy, "%s:%u", kind, (unsigned)policy);
    const char *shares = setting("STAND_IN_SHARES", "");
    memory->bytes = bytes;
    if (host == NULL) {
        host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (host == MAP_FAILED) { /* a driver takes a descriptor that is open for reading only, for reading */
            host = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        }
        memory->mapped = 1;
    }
    if (strcmp(shares, name) == 0 || strcmp(shares, with_policy) == 0) {
        memory->data = host;
        return memory;
    }
    memory->data = malloc(bytes);
    memory->owned = 1;
    memory->mapped = 0;
    memcpy(memory->data, host, bytes);
    return memory;
}

EXPORT cl_int clGetPlatformIDs(cl_uint room, cl_platform_id *platforms, cl_uint *count) {
    *count = (cl_uint)atoi(setting("STAND_IN_PLATFORMS", "1"));
    for (cl_uint i = 0; i < *count && i < room; ++i) {
        platforms[i] = THING;
    }
    return CL_SUCCESS;
}
EXPORT cl_int clGetPlatformInfo(cl_platform_id p, cl_platform_info what, size_t room, void *value, size_t *bytes) {
    (void)p, (void)what, (void)bytes;
    snprintf(value, room, "Stand-in");
    return CL_SUCCESS;
}
EXPORT cl_int clGetDeviceIDs(cl_platform_id p, cl_device_type type, cl_uint room, cl_device_id *devices,
                             cl_uint *count) {
    (void)p, (void)type;
    *count = (cl_uint)atoi(setting("STAND_IN_DEVICES", "1"));
    for (cl_uint i = 0; i < *count && i < room; ++i) {
        devices[i] = THING;
    }
    return *count == 0 ? CL_DEVICE_NOT_FOUND : CL_SUCCESS;
}
EXPORT cl_int clGetDeviceInfo(cl_device_id d, cl_device_info what, size_t room, void *value, size_t *bytes) {
    const char *text = what == CL_DEVICE_EXTENSIONS ? setting("STAND_IN_EXTENSIONS", "") : "Stand-in";
    const uint64_t number = what == CL_DEVICE_TYPE ? CL_DEVICE_TYPE_GPU : 1 << 20;
    (void)d;
    if (what == CL_DEVICE_EXTENSIONS || what == CL_DEVICE_NAME || what == CL_DRIVER_VERSION) {
        if (bytes != NULL) *bytes = strlen(text) + 1;
        if (value != NULL) snprintf(value, room, "%s", text);
    } else {
        memcpy(value, &number, room < sizeof number ? room : sizeof number);
    }
    return CL_SUCCESS;
}
EXPORT cl_context clCreateContext(const cl_context_properties *properties, cl_uint count, const cl_device_id *devices,
                                  void (*notify)(const char *, const void *, size_t, void *), void *user,
                                  cl_int *code) {
    (void)properties, (void)count, (void)devices, (void)notify, (void)user;
    *code = CL_SUCCESS;
    return THING;
}
EXPORT cl_command_queue clCreateCommandQueue(cl_context c, cl_device_id d, cl_command_queue_properties p,
                                             cl_int *code) {
    (void)c, (void)d, (void)p;
    *code = CL_SUCCESS;
    return THING;
}
EXPORT cl_program clCreateProgramWithSource(cl_context c, cl_uint count, const char **texts, const size_t *lengths,
                                            cl_int *code) {
    (void)c, (void)count, (void)texts, (void)lengths;
    *code = CL_SUCCESS;
    return THING;
}
EXPORT cl_program clCreateProgramWithBinary(cl_context c, cl_uint count, const cl_device_id *devices,
                                            const size_t *lengths, const unsigned char **binaries, cl_int *status,
                                            cl_int *code) {
    (void)c, (void)count, (void)devices, (void)lengths, (void)binaries, (void)status;
    *code = CL_BUILD_PROGRAM_FAILURE;
    return NULL;
}
EXPORT cl_int clBuildProgram(cl_program p, cl_uint count, const cl_device_id *devices, const char *options,
                             void (*notify)(cl_program, void *), void *user) {
    (void)p, (void)count, (void)devices, (void)options, (void)notify, (void)user;
    return CL_SUCCESS;
}
EXPORT cl_int clGetProgramInfo(cl_program p, cl_program_info what, size_t room, void *value, size_t *bytes) {
    (void)p, (void)what, (void)room, (void)value, (void)bytes;
    return CL_OUT_OF_RESOURCES;
}
EXPORT cl_int clGetProgramBuildInfo(cl_program p, cl_device_id d, cl_program_build_info what, size_t room, void *value,
                                    size_t *bytes) {
    (void)p, (void)d, (void)what, (void)room, (void)value, (void)bytes;
    return CL_OUT_OF_RESOURCES;
}
EXPORT cl_kernel clCreateKernel(cl_program p, const char *name, cl_int *code) {
    (void)p, (void)name;
    *code = CL_SUCCESS;
    return calloc(1, sizeof(struct _cl_kernel));
}
EXPORT cl_int clReleaseKernel(cl_kernel kernel) {
    free(kernel);
    return CL_SUCCESS;
}
EXPORT cl_int clSetKernelArg(cl_kernel kernel, cl_uint i, size_t bytes, const void *value) {
    memcpy(&kernel->arguments[i], value, bytes);
    return CL_SUCCESS;
}
EXPORT cl_int clGetKernelWorkGroupInfo(cl_kernel k, cl_device_id d, cl_kernel_work_group_info what, size_t room,
                                       void *value, size_t *bytes) {
    (void)k, (void)d, (void)what, (void)room, (void)value, (void)bytes;
    return CL_OUT_OF_RESOURCES;
}
EXPORT cl_mem clCreateBuffer(cl_context c, cl_mem_flags flags, size_t bytes, void *host, cl_int *code) {
    (void)c;
    *code = CL_SUCCESS;
    if ((flags & CL_MEM_EXT_HOST_PTR_QCOM) != 0) {
        /* The three structs begin alike; an AHardwareBuffer, here a mapping's address, stands where a descriptor would. */
        const cl_mem_ext_host_ptr *head = host;
        const int ahb = head->allocation_type == HVDC_CL_MEM_ANDROID_AHARDWAREBUFFER_HOST_PTR_QCOM;
        const int ion = head->allocation_type == CL_MEM_ION_HOST_PTR_QCOM;
        const size_t size = ahb ? sizeof(hvdc_cl_mem_ahardwarebuffer_host_ptr) : sizeof(cl_mem_ion_host_ptr);
        void *pages =
            ahb ? ((hvdc_cl_mem_ahardwarebuffer_host_ptr *)host)->ahb_ptr : ((cl_mem_ion_host_ptr *)host)->ion_hostptr;
        log_line(ahb ? "ahb" : ion ? "ion" : "dmabuf", flags, bytes, host, size);
        return imported(ahb ? "ahb" : ion ? "ion" : "dmabuf", head->host_cache_policy, pages, -1, bytes);
    }
    if ((flags & CL_MEM_USE_HOST_PTR) != 0) {
        log_line("host", flags, bytes, &host, sizeof host);
        return imported("host", 0, host, -1, bytes);
    }
    cl_mem memory = calloc(1, sizeof *memory);
    memory->data = calloc(bytes, 1);
    memory->bytes = bytes;
    memory->owned = 1;
    return memory;
}
EXPORT cl_mem clCreateBufferWithProperties(cl_context c, const cl_mem_properties *properties, cl_mem_flags flags,
                                           size_t bytes, void *host, cl_int *code) {
    (void)c, (void)host;
    *code = CL_SUCCESS;
    log_line("khr", flags, bytes, properties, 3 * sizeof *properties);
    return imported("khr", 0, NULL, (int)properties[1], bytes);
}
EXPORT cl_mem clImportMemoryARM(cl_context c, cl_mem_flags flags, const cl_import_properties_arm *properties,
                                void *memory, size_t bytes, cl_int *code) {
    (void)c;
    *code = CL_SUCCESS;
    log_line("arm", flags, bytes, properties, 3 * sizeof *properties);
    return imported("arm", 0, NULL, *(int *)memory, bytes);
}
EXPORT cl_int clEnqueueAcquireExternalMemObjectsKHR(cl_command_queue q, cl_uint count, const cl_mem *objects,
                                                    cl_uint waits, const cl_event *events, cl_event *event) {
    (void)q, (void)objects, (void)waits, (void)events, (void)event;
    log_line("acquire", 0, count, NULL, 0);
    return CL_SUCCESS;
}
EXPORT cl_int clEnqueueReleaseExternalMemObjectsKHR(cl_command_queue q, cl_uint count, const cl_mem *objects,
                                                    cl_uint waits, const cl_event *events, cl_event *event) {
    (void)q, (void)objects, (void)waits, (void)events, (void)event;
    log_line("release", 0, count, NULL, 0);
    return CL_SUCCESS;
}
EXPORT cl_int clReleaseMemObject(cl_mem memory) {
    if (memory->owned)
        free(memory->data);
    else if (memory->mapped)
        munmap(memory->data, memory->bytes);
    free(memory);
    return CL_SUCCESS;
}
EXPORT cl_int clEnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint dimensions, const size_t *offset,
                                     const size_t *global, const size_t *local, cl_uint waits, const cl_event *events,
                                     cl_event *event) {
    (void)q, (void)dimensions, (void)offset, (void)local, (void)waits, (void)events, (void)event;
    memcpy(k->arguments[2].memory->data + 4 * (size_t)k->arguments[3].number,
           k->arguments[0].memory->data + 4 * (size_t)k->arguments[1].number, 4 * global[0]);
    if (setting("STAND_IN_WRONG", NULL) != NULL && global[0] < 1024) { /* less than the probe's page */
        k->arguments[2].memory->data[0] ^= 1;
    }
    return CL_SUCCESS;
}
EXPORT cl_int clEnqueueReadBuffer(cl_command_queue q, cl_mem m, cl_bool wait, size_t offset, size_t bytes, void *to,
                                  cl_uint waits, const cl_event *events, cl_event *event) {
    (void)q, (void)wait, (void)waits, (void)events, (void)event;
    memcpy(to, m->data + offset, bytes);
    return CL_SUCCESS;
}
EXPORT cl_int clEnqueueWriteBuffer(cl_command_queue q, cl_mem m, cl_bool wait, size_t offset, size_t bytes,
                                   const void *from, cl_uint waits, const cl_event *events, cl_event *event) {
    (void)q, (void)wait, (void)waits, (void)events, (void)event;
    memcpy(m->data + offset, from, bytes);
    return CL_SUCCESS;
}
EXPORT cl_int clEnqueueFillBuffer(cl_command_queue q, cl_mem m, const void *pattern, size_t pattern_bytes,
                                  size_t offset, size_t bytes, cl_uint waits, const cl_event *events, cl_event *event) {
    (void)q, (void)m, (void)pattern, (void)pattern_bytes, (void)offset, (void)bytes, (void)waits, (void)events,
        (void)event;
    return CL_SUCCESS;
}
EXPORT cl_int clReleaseContext(cl_context c) { return (void)c, CL_SUCCESS; }
EXPORT cl_int clReleaseCommandQueue(cl_command_queue q) { return (void)q, CL_SUCCESS; }
EXPORT cl_int clReleaseProgram(cl_program p) { return (void)p, CL_SUCCESS; }
EXPORT cl_int clFlush(cl_command_queue q) { return (void)q, CL_SUCCESS; }
EXPORT cl_int clFinish(cl_command_queue q) { return (void)q, CL_SUCCESS; }
EXPORT void *clGetExtensionFunctionAddressForPlatform(cl_platform_id p, const char *name) {
    return (void)p, (void)name, NULL;
}
