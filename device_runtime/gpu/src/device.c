#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_PLATFORMS 16u
#define MAX_DEVICES 16u
#define MAX_DIMENSIONS 3u

static const uint64_t BELOW_1_GIB = (1ull << 30) - HVDC_GPU_PAGE_BYTES;

static void device_text(const hvdc_opencl *cl, cl_device_id device, cl_device_info what, char *text, size_t bytes) {
    if (cl->clGetDeviceInfo(device, what, bytes - 1, text, NULL) != CL_SUCCESS) {
        (void)snprintf(text, bytes, "?");
    }
    text[bytes - 1] = 0;
}

static void platform_text(const hvdc_opencl *cl, cl_platform_id platform, char *text, size_t bytes) {
    if (cl->clGetPlatformInfo(platform, CL_PLATFORM_NAME, bytes - 1, text, NULL) != CL_SUCCESS) {
        (void)snprintf(text, bytes, "?");
    }
    text[bytes - 1] = 0;
}

/* An index in decimal, or a part of the name; NULL fits everything. */
static bool fits(const char *wanted, uint32_t index, const char *name) {
    if (wanted == NULL) {
        return true;
    }
    char *end;
    unsigned long number = strtoul(wanted, &end, 10);
    if (end != wanted && *end == 0) {
        return number == index;
    }
    return strstr(name, wanted) != NULL;
}

/* The first GPU that fits the options, else the first device. */
static bool choose(hvdc_device *d, const hvdc_gpu_options *options, hvdc_failure *failure) {
    cl_platform_id platforms[MAX_PLATFORMS];
    cl_uint platform_count = 0, seen = 0;
    cl_int code = d->cl.clGetPlatformIDs(MAX_PLATFORMS, platforms, &platform_count);
    if (code != CL_SUCCESS || platform_count == 0) {
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                         "OpenCL has no platform (code %d): a loader is there, but no driver; install one (on Debian: "
                         "pocl-opencl-icd), or run on the NPU alone",
                         (int)code);
    }
    for (cl_uint p = 0; p < platform_count && p < MAX_PLATFORMS; ++p) {
        cl_device_id devices[MAX_DEVICES];
        cl_uint device_count = 0;
        char name[sizeof d->platform_name];
        platform_text(&d->cl, platforms[p], name, sizeof name);
        if (!fits(options->platform, p, name) ||
            d->cl.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MAX_DEVICES, devices, &device_count) != CL_SUCCESS) {
            continue;
        }
        for (cl_uint i = 0; i < device_count && i < MAX_DEVICES; ++i, ++seen) {
            cl_ulong type = 0;
            char device_name[sizeof d->name];
            device_text(&d->cl, devices[i], CL_DEVICE_NAME, device_name, sizeof device_name);
            d->cl.clGetDeviceInfo(devices[i], CL_DEVICE_TYPE, sizeof type, &type, NULL);
            bool better = d->device == NULL || (d->is_cpu && (type & CL_DEVICE_TYPE_GPU) != 0);
            if (fits(options->device, seen, device_name) && better) {
                d->platform = platforms[p];
                d->device = devices[i];
                d->is_cpu = (type & CL_DEVICE_TYPE_CPU) != 0 && !options->as_gpu;
                memcpy(d->platform_name, name, sizeof name);
                memcpy(d->name, device_name, sizeof device_name);
            }
        }
    }
    if (d->device == NULL) {
        return hvdc_fail(
            failure, HVDC_FAILURE_DEVICE,
            "OpenCL has no device that fits (platform %s, device %s) among the %u of %u platforms; clinfo -l "
            "lists them",
            options->platform == NULL ? "any" : options->platform, options->device == NULL ? "any" : options->device,
            (unsigned)seen, (unsigned)platform_count);
    }
    return true;
}

bool hvdc_device_open(const hvdc_gpu_options *options, hvdc_device *d, hvdc_failure *failure) {
    memset(d, 0, sizeof *d);
    d->cache_directory = options->cache_directory;
    d->profiling = options->profile;
    if (!hvdc_opencl_load(options->library, &d->cl, failure)) {
        return false;
    }
    if (!choose(d, options, failure)) {
        hvdc_device_close(d);
        return false;
    }
    hvdc_opencl_extend(&d->cl, d->platform);
    device_text(&d->cl, d->device, CL_DRIVER_VERSION, d->driver, sizeof d->driver);
    cl_ulong largest = 0;
    size_t group = 1;
    d->cl.clGetDeviceInfo(d->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof largest, &largest, NULL);
    d->cl.clGetDeviceInfo(d->device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof group, &group, NULL);
    d->max_work_group = group;
    d->max_buffer_bytes = largest == 0 || largest > BELOW_1_GIB ? BELOW_1_GIB : largest;
    if (options->max_buffer_bytes != 0 && options->max_buffer_bytes < d->max_buffer_bytes) {
        d->max_buffer_bytes = options->max_buffer_bytes;
    }
    cl_int code = CL_SUCCESS;
    d->context = d->cl.clCreateContext(NULL, 1, &d->device, NULL, NULL, &code);
    if (code == CL_SUCCESS) {
        d->queue = d->cl.clCreateCommandQueue(d->context, d->device, 0, &code);
    }
    if (code != CL_SUCCESS) {
        hvdc_device_close(d);
        return hvdc_opencl_fail(failure, code, "a context with a queue");
    }
    return true;
}

void hvdc_device_count(const hvdc_gpu_options *options, hvdc_device *d) {
    const uint64_t given = options->max_buffer_bytes;
    *d = (hvdc_device){.counts = true, .max_buffer_bytes = given != 0 && given < BELOW_1_GIB ? given : BELOW_1_GIB};
}

void hvdc_device_close(hvdc_device *d) {
    if (d->queue != NULL) {
        d->cl.clFinish(d->queue);
        d->cl.clReleaseCommandQueue(d->queue);
    }
    if (d->context != NULL) {
        d->cl.clReleaseContext(d->context);
    }
    memset(d, 0, sizeof *d);
}

bool hvdc_device_has(const hvdc_device *d, const char *extension) {
    size_t bytes = 0;
    if (d->cl.clGetDeviceInfo(d->device, CL_DEVICE_EXTENSIONS, 0, NULL, &bytes) != CL_SUCCESS) {
        return false;
    }
    char *list = calloc(bytes + 1, 1);
    bool found = false;
    if (list != NULL && d->cl.clGetDeviceInfo(d->device, CL_DEVICE_EXTENSIONS, bytes, list, NULL) == CL_SUCCESS) {
        size_t length = strlen(extension);
        for (const char *at = strstr(list, extension); at != NULL && !found; at = strstr(at + 1, extension)) {
            found = (at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0);
        }
    }
    free(list);
    return found;
}

bool hvdc_device_allocate(hvdc_device *d, const char *what, uint64_t bytes, bool zeroed, hvdc_buffer *buffer,
                          hvdc_failure *failure) {
    *buffer = (hvdc_buffer){NULL, 0};
    if (bytes > d->max_buffer_bytes) {
        return hvdc_fail(
            failure, HVDC_FAILURE_MEMORY,
            "%s needs a buffer of %llu bytes, and the limit is %llu; a smaller video or fewer rows at once "
            "need less",
            what, (unsigned long long)bytes, (unsigned long long)d->max_buffer_bytes);
    }
    if (d->counts) {
        d->allocated_bytes += bytes;
        return true;
    }
    cl_int code = CL_SUCCESS;
    cl_mem memory = d->cl.clCreateBuffer(d->context, CL_MEM_READ_WRITE, (size_t)bytes, NULL, &code);
    if (code == CL_SUCCESS && zeroed) {
        const uint32_t zero = 0;
        code = d->cl.clEnqueueFillBuffer(d->queue, memory, &zero, bytes % sizeof zero == 0 ? sizeof zero : 1, 0,
                                         (size_t)bytes, 0, NULL, NULL);
        if (code != CL_SUCCESS) {
            d->cl.clReleaseMemObject(memory);
        }
    }
    if (code != CL_SUCCESS) {
        return hvdc_opencl_fail(failure, code, what);
    }
    *buffer = (hvdc_buffer){memory, bytes};
    d->allocated_bytes += bytes;
    d->largest_bytes = bytes > d->largest_bytes ? bytes : d->largest_bytes;
    return true;
}

void hvdc_device_free(hvdc_device *d, hvdc_buffer *buffer) {
    if (buffer->memory != NULL) {
        d->cl.clReleaseMemObject(buffer->memory);
        d->allocated_bytes -= buffer->bytes;
    }
    *buffer = (hvdc_buffer){NULL, 0};
}

bool hvdc_device_write(hvdc_device *d, cl_mem to, uint64_t offset, const void *from, uint64_t bytes,
                       hvdc_failure *failure) {
    cl_int code = d->cl.clEnqueueWriteBuffer(d->queue, to, CL_TRUE, (size_t)offset, (size_t)bytes, from, 0, NULL, NULL);
    return code == CL_SUCCESS || hvdc_opencl_fail(failure, code, "to write a buffer");
}

bool hvdc_device_read(hvdc_device *d, cl_mem from, uint64_t offset, void *to, uint64_t bytes, hvdc_failure *failure) {
    cl_int code = d->cl.clEnqueueReadBuffer(d->queue, from, CL_TRUE, (size_t)offset, (size_t)bytes, to, 0, NULL, NULL);
    return code == CL_SUCCESS || hvdc_opencl_fail(failure, code, "to read a buffer");
}

bool hvdc_device_finish(hvdc_device *d, hvdc_failure *failure) {
    cl_int code = d->cl.clFinish(d->queue);
    return code == CL_SUCCESS || hvdc_opencl_fail(failure, code, "to finish what was launched");
}

void hvdc_device_name(hvdc_device *d, cl_kernel kernel, const char *name) {
    if (d->profiling && d->profiled < HVDC_DEVICE_MAX_PROFILED) {
        d->profile[d->profiled] = (hvdc_gpu_kernel){.name = name};
        d->profiled_kernels[d->profiled++] = kernel;
    }
}

void hvdc_device_release_kernel(hvdc_device *d, cl_kernel kernel) {
    for (uint32_t i = 0; i < d->profiled; ++i) {
        if (d->profiled_kernels[i] == kernel) {
            --d->profiled;
            d->profile[i] = d->profile[d->profiled];
            d->profiled_kernels[i] = d->profiled_kernels[d->profiled];
            break;
        }
    }
    if (kernel != NULL) {
        d->cl.clReleaseKernel(kernel);
    }
}

void hvdc_device_reset_profile(hvdc_device *d) {
    for (uint32_t i = 0; i < d->profiled; ++i) {
        d->profile[i].seconds = 0;
        d->profile[i].launches = 0;
    }
}

/* Launches made one after another, with nothing else in the queue. */
static cl_int launch_profiled(hvdc_device *d, cl_kernel kernel, const size_t *items, const size_t *group) {
    struct timespec start, end;
    d->cl.clFinish(d->queue);
    clock_gettime(CLOCK_MONOTONIC, &start);
    cl_int code = d->cl.clEnqueueNDRangeKernel(d->queue, kernel, MAX_DIMENSIONS, NULL, items, group, 0, NULL, NULL);
    d->cl.clFinish(d->queue);
    clock_gettime(CLOCK_MONOTONIC, &end);
    for (uint32_t i = 0; i < d->profiled; ++i) {
        if (d->profiled_kernels[i] == kernel) {
            d->profile[i].seconds += (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
            ++d->profile[i].launches;
        }
    }
    return code;
}

bool hvdc_device_launch(hvdc_device *d, cl_kernel kernel, const hvdc_argument *arguments, uint32_t count,
                        const uint64_t global[3], const uint64_t local[3], hvdc_failure *failure) {
    size_t items[MAX_DIMENSIONS], group[MAX_DIMENSIONS];
    for (uint32_t i = 0; i < MAX_DIMENSIONS; ++i) {
        group[i] = (size_t)local[i];
        items[i] = (size_t)((global[i] + local[i] - 1) / local[i] * local[i]);
    }
    cl_int code = CL_SUCCESS;
    for (uint32_t i = 0; i < count && code == CL_SUCCESS; ++i) {
        code = d->cl.clSetKernelArg(kernel, i, arguments[i].bytes, arguments[i].value);
    }
    if (code == CL_SUCCESS && d->profiling) {
        code = launch_profiled(d, kernel, items, group);
    } else if (code == CL_SUCCESS) {
        code = d->cl.clEnqueueNDRangeKernel(d->queue, kernel, MAX_DIMENSIONS, NULL, items, group, 0, NULL, NULL);
    }
    return code == CL_SUCCESS || hvdc_opencl_fail(failure, code, "to launch a kernel");
}
