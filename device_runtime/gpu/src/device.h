/* One OpenCL device with a context and a queue, and its memory, counted. */
#ifndef HVDC_GPU_DEVICE_H
#define HVDC_GPU_DEVICE_H

#include "hvdc/gpu.h"
#include "opencl.h"

#define HVDC_GPU_PAGE_BYTES 4096u

#define HVDC_DEVICE_MAX_PROFILED 32u

typedef struct hvdc_device {
    hvdc_opencl cl;
    cl_platform_id platform;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    bool is_cpu;
    bool counts; /* there is no device: buffers are counted, and none is made */
    uint64_t max_buffer_bytes;
    uint64_t max_work_group;
    uint64_t allocated_bytes; /* of all buffers that hvdc_device_allocate made and that still exist */
    uint64_t largest_bytes;
    uint32_t programs_compiled;
    const char *cache_directory;
    bool profiling;
    uint32_t profiled; /* kernels in the table */
    hvdc_gpu_kernel profile[HVDC_DEVICE_MAX_PROFILED];
    cl_kernel profiled_kernels[HVDC_DEVICE_MAX_PROFILED];
    char platform_name[64], name[128], driver[64];
} hvdc_device;

/* No device, but the limit of a buffer that one without a smaller one would have. */
void hvdc_device_count(const hvdc_gpu_options *options, hvdc_device *device);

bool hvdc_device_open(const hvdc_gpu_options *options, hvdc_device *device, hvdc_failure *failure);
void hvdc_device_close(hvdc_device *device);

/* Whether the device's list of extensions has this one. */
bool hvdc_device_has(const hvdc_device *device, const char *extension);

/* Memory of the device's own. `zeroed`: filled with zeros, else undefined. A failure names `what`. */
typedef struct hvdc_buffer {
    cl_mem memory; /* NULL: none */
    uint64_t bytes;
} hvdc_buffer;
bool hvdc_device_allocate(hvdc_device *device, const char *what, uint64_t bytes, bool zeroed, hvdc_buffer *buffer,
                          hvdc_failure *failure);
void hvdc_device_free(hvdc_device *device, hvdc_buffer *buffer);

/* Copies that are done when they return. */
bool hvdc_device_write(hvdc_device *device, cl_mem to, uint64_t offset, const void *from, uint64_t bytes,
                       hvdc_failure *failure);
bool hvdc_device_read(hvdc_device *device, cl_mem from, uint64_t offset, void *to, uint64_t bytes,
                      hvdc_failure *failure);
bool hvdc_device_finish(hvdc_device *device, hvdc_failure *failure);

/* For the profile: names a kernel; forgets it, and releases it (NULL is allowed); begins anew. */
void hvdc_device_name(hvdc_device *device, cl_kernel kernel, const char *name);
void hvdc_device_release_kernel(hvdc_device *device, cl_kernel kernel);
void hvdc_device_reset_profile(hvdc_device *device);

/* One launch over `global` work-items in groups of `local`; `global` is rounded up to whole groups. */
typedef struct hvdc_argument {
    size_t bytes;
    const void *value;
} hvdc_argument;
#define HVDC_ARGUMENT(variable) {sizeof(variable), &(variable)}
bool hvdc_device_launch(hvdc_device *device, cl_kernel kernel, const hvdc_argument *arguments, uint32_t count,
                        const uint64_t global[3], const uint64_t local[3], hvdc_failure *failure);

#endif
