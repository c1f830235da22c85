/* DMA-BUF heaps of the kernel. Source: linux/dma-heap.h; the names of the heaps: Android's DMA-BUF heaps on Qualcomm
 * devices, of which the vendor's comes first because its buffers are those that FastRPC maps. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "dma_buf.h"
#include "memory_kinds.h"

static bool sync_caches(const hvdc_memory *memory, uint64_t flags, hvdc_failure *failure) {
    struct dma_buf_sync sync = {.flags = flags | DMA_BUF_SYNC_RW};
    int done;
    do done = ioctl(memory->fd, DMA_BUF_IOCTL_SYNC, &sync);
    while (done != 0 && (errno == EINTR || errno == EAGAIN));
    /* A kernel that does not know it has nothing to synchronise; the probe sees whether that is so. */
    return done == 0 || errno == ENOTTY || errno == EINVAL ||
           hvdc_fail(failure, HVDC_FAILURE_MEMORY, "the caches of shared memory cannot be synchronised: %s",
                     strerror(errno));
}

bool hvdc_dma_buf_begin_write(hvdc_memory *memory, hvdc_failure *failure) {
    return sync_caches(memory, DMA_BUF_SYNC_START, failure);
}

bool hvdc_dma_buf_end_write(hvdc_memory *memory, hvdc_failure *failure) {
    return sync_caches(memory, DMA_BUF_SYNC_END, failure);
}

bool hvdc_library_function(void *library, const char *name, void *function, size_t function_bytes) {
    void *found = library == NULL ? NULL : dlsym(library, name);
    memcpy(function, &found, function_bytes);
    return found != NULL;
}

static bool create(const char *name, uint64_t bytes, hvdc_memory *memory, hvdc_failure *failure) {
    static const char *const heaps[] = {"/dev/dma_heap/qcom,system", "/dev/dma_heap/system"};
    struct dma_heap_allocation_data made = {.len = bytes, .fd_flags = O_RDWR | O_CLOEXEC};
    bool allocated = false;
    int error = ENOENT;
    *memory = HVDC_NO_MEMORY;
    for (size_t i = 0; !allocated && i < sizeof heaps / sizeof *heaps; i++) {
        int heap = open(heaps[i], O_RDONLY | O_CLOEXEC);
        allocated = heap >= 0 && ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &made) == 0;
        if (!allocated && errno != ENOENT) error = errno;
        if (heap >= 0) (void)close(heap);
    }
    if (!allocated)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%s: no DMA-BUF heap gives %llu bytes: %s", name,
                         (unsigned long long)bytes, strerror(error));
    *memory = (hvdc_memory){.bytes = bytes, .fd = (int)made.fd};
    if (hvdc_memory_map(memory->fd, bytes, true, &memory->data, failure)) return true;
    hvdc_memory_unmap(memory);
    return false;
}

const hvdc_memory_kind hvdc_memory_dma_heap = {
    .name = "dma-buf heap",
    .create = create,
    .begin_write = hvdc_dma_buf_begin_write,
    .end_write = hvdc_dma_buf_end_write,
    .close = hvdc_memory_unmap,
};
