/* AHardwareBuffer of format BLOB. Source: android/hardware_buffer.h; the descriptor inside of it: cutils/native_handle.h
 * and vndk/hardware_buffer.h. Declared here, because a program that may run without the library cannot link it. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "dma_buf.h"
#include "memory_kinds.h"

#define FORMAT_BLOB 0x21u
#define USAGE_CPU_READ_OFTEN 0x3u
#define USAGE_CPU_WRITE_OFTEN 0x30u
#define USAGE_GPU_DATA_BUFFER (1u << 24)
#define USAGE ((uint64_t)(USAGE_CPU_READ_OFTEN | USAGE_CPU_WRITE_OFTEN | USAGE_GPU_DATA_BUFFER))

typedef struct buffer_desc {
    uint32_t width, height, layers, format;
    uint64_t usage;
    uint32_t stride, rfu0;
    uint64_t rfu1;
} buffer_desc;

typedef struct native_handle {
    int version, fd_count, int_count;
    int data[]; /* descriptors first */
} native_handle;

typedef struct functions {
    int (*allocate)(const buffer_desc *desc, void **buffer);
    void (*release)(void *buffer);
    int (*lock)(void *buffer, uint64_t usage, int fence, const void *rect, void **data);
    int (*unlock)(void *buffer, int *fence);
    const native_handle *(*handle)(const void *buffer);
} functions;

static bool open_functions(functions *f, hvdc_failure *failure) {
    void *library = dlopen("libnativewindow.so", RTLD_NOW | RTLD_LOCAL);
    bool there = hvdc_library_function(library, "AHardwareBuffer_allocate", &f->allocate, sizeof f->allocate) &&
                 hvdc_library_function(library, "AHardwareBuffer_release", &f->release, sizeof f->release) &&
                 hvdc_library_function(library, "AHardwareBuffer_lock", &f->lock, sizeof f->lock) &&
                 hvdc_library_function(library, "AHardwareBuffer_unlock", &f->unlock, sizeof f->unlock) &&
                 hvdc_library_function(library, "AHardwareBuffer_getNativeHandle", &f->handle, sizeof f->handle);
    return there || hvdc_fail(failure, HVDC_FAILURE_DEVICE, "there is no libnativewindow.so with AHardwareBuffer");
}

/* Stays locked for the CPU while it is mapped: what an engine computes is fetched by the caches' synchronisation. */
static bool fill_in(const functions *f, void *buffer, uint64_t bytes, hvdc_memory *memory) {
    void *data = NULL;
    const native_handle *handle = f->handle(buffer);
    int fd = handle == NULL || handle->fd_count < 1 ? -1 : fcntl(handle->data[0], F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return false;
    if (f->lock(buffer, USAGE_CPU_READ_OFTEN | USAGE_CPU_WRITE_OFTEN, -1, NULL, &data) != 0 || data == NULL) {
        (void)close(fd);
        return false;
    }
    memset(data, 0, (size_t)bytes);
    *memory = (hvdc_memory){.data = data, .bytes = bytes, .fd = fd, .handle = buffer};
    return true;
}

static bool create(const char *name, uint64_t bytes, hvdc_memory *memory, hvdc_failure *failure) {
    functions f;
    void *buffer = NULL;
    *memory = HVDC_NO_MEMORY;
    if (!open_functions(&f, failure)) return false;
    buffer_desc desc = {.width = (uint32_t)bytes, .height = 1, .layers = 1, .format = FORMAT_BLOB, .usage = USAGE};
    if (bytes <= UINT32_MAX && f.allocate(&desc, &buffer) == 0 && buffer != NULL) {
        if (fill_in(&f, buffer, bytes, memory)) return true;
        f.release(buffer);
    }
    return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%s: no AHardwareBuffer of %llu bytes that the CPU can map", name,
                     (unsigned long long)bytes);
}

static void release(hvdc_memory *memory) {
    functions f;
    if (memory->fd >= 0) (void)close(memory->fd);
    if (memory->handle != NULL && open_functions(&f, NULL)) {
        (void)f.unlock(memory->handle, NULL);
        f.release(memory->handle);
    }
    *memory = HVDC_NO_MEMORY;
}

const hvdc_memory_kind hvdc_memory_hardware_buffer = {
    .name = "AHardwareBuffer",
    .create = create,
    .begin_write = hvdc_dma_buf_begin_write,
    .end_write = hvdc_dma_buf_end_write,
    .close = release,
};
