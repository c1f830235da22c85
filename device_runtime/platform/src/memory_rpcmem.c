/* The Hexagon heap: what FastRPC's library allocates. Source: rpcmem.h of qualcomm/fastrpc. */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "dma_buf.h"
#include "memory_kinds.h"

#define HEAP_ID_SYSTEM 25
#define DEFAULT_FLAGS 1u

typedef struct rpcmem {
    void *(*alloc)(int heap, uint32_t flags, int bytes);
    int (*to_fd)(void *data);
    void (*release)(void *data);
} rpcmem;

/* The library stays open: memory of it may be there until the program ends. */
static bool open_rpcmem(rpcmem *functions, hvdc_failure *failure) {
    void *library = dlopen("libcdsprpc.so", RTLD_NOW | RTLD_LOCAL);
    bool there = hvdc_library_function(library, "rpcmem_alloc", &functions->alloc, sizeof functions->alloc) &&
                 hvdc_library_function(library, "rpcmem_to_fd", &functions->to_fd, sizeof functions->to_fd) &&
                 hvdc_library_function(library, "rpcmem_free", &functions->release, sizeof functions->release);
    return there || hvdc_fail(failure, HVDC_FAILURE_DEVICE, "there is no libcdsprpc.so with rpcmem: no Hexagon heap");
}

static bool create(const char *name, uint64_t bytes, hvdc_memory *memory, hvdc_failure *failure) {
    rpcmem functions;
    *memory = HVDC_NO_MEMORY;
    if (!open_rpcmem(&functions, failure)) return false;
    void *data = bytes > INT_MAX ? NULL : functions.alloc(HEAP_ID_SYSTEM, DEFAULT_FLAGS, (int)bytes);
    int fd = data == NULL ? -1 : functions.to_fd(data);
    int own = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0); /* its own descriptor stays the library's */
    if (own < 0) {
        if (data != NULL) functions.release(data);
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%s: the Hexagon heap gives no %llu bytes", name,
                         (unsigned long long)bytes);
    }
    memset(data, 0, (size_t)bytes);
    *memory = (hvdc_memory){.data = data, .bytes = bytes, .fd = own, .handle = data};
    return true;
}

static void release(hvdc_memory *memory) {
    rpcmem functions;
    if (memory->fd >= 0) (void)close(memory->fd);
    if (memory->handle != NULL && open_rpcmem(&functions, NULL)) functions.release(memory->handle);
    *memory = HVDC_NO_MEMORY;
}

const hvdc_memory_kind hvdc_memory_rpcmem = {
    .name = "rpcmem",
    .create = create,
    .begin_write = hvdc_dma_buf_begin_write,
    .end_write = hvdc_dma_buf_end_write,
    .close = release,
};
