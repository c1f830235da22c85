/* Anonymous files: the shared memory of a Linux host. They have no name in any file system, so that nothing is left
 * when the last process that maps them is gone, however it went. */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory_kinds.h"

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 0x0001u
#define MFD_ALLOW_SEALING 0x0002u
#endif

static bool create(const char *name, uint64_t bytes, hvdc_memory *memory, hvdc_failure *failure) {
    *memory = HVDC_NO_MEMORY;
    if (bytes == 0 || bytes > INT64_MAX)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%s: %llu bytes are no size for shared memory", name,
                         (unsigned long long)bytes);
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%s: memfd_create failed: %s", name, strerror(errno));
    /* All pages now: one that is missing later would be a SIGBUS in the middle of a video. */
    int error = posix_fallocate(fd, 0, (off_t)bytes);
    if (error != 0) {
        (void)close(fd);
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                         "%s: there is no shared memory for its %llu bytes: %s; close other programs, or take a "
                         "smaller video",
                         name, (unsigned long long)bytes, strerror(error));
    }
    if (!hvdc_memory_map(fd, bytes, true, &memory->data, failure)) {
        (void)close(fd);
        return false;
    }
    memory->bytes = bytes;
    memory->fd = fd;
    return true;
}

static bool no_caches(hvdc_memory *memory, hvdc_failure *failure) {
    (void)memory, (void)failure;
    return true;
}

const hvdc_memory_kind hvdc_memory_memfd = {
    .name = "memfd",
    .sealable = true,
    .create = create,
    .begin_write = no_caches,
    .end_write = no_caches,
    .close = hvdc_memory_unmap,
};
