#define _GNU_SOURCE

#include "hvdc/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory_kinds.h"

#define PROBE_BYTES 65536u
#define SEALED (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

bool hvdc_memory_map(int fd, uint64_t bytes, bool writable, uint8_t **data, hvdc_failure *failure) {
    if (bytes == 0 || bytes > SIZE_MAX)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%" PRIu64 " bytes of shared memory cannot be mapped", bytes);
    void *at = mmap(NULL, (size_t)bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%" PRIu64 " bytes of shared memory cannot be mapped: %s", bytes,
                         strerror(errno));
    *data = at;
    return true;
}

static void unmap(hvdc_memory *memory) {
    if (memory->data != NULL) (void)munmap(memory->data, (size_t)memory->bytes);
    memory->data = NULL;
}

void hvdc_memory_unmap(hvdc_memory *memory) {
    unmap(memory);
    if (memory->fd >= 0) (void)close(memory->fd);
    *memory = HVDC_NO_MEMORY;
}

const hvdc_memory_kind *const *hvdc_memory_kinds(void) {
    static const hvdc_memory_kind *const kinds[] = {
#if defined(HVDC_ANDROID_MEMORY)
        &hvdc_memory_dma_heap, &hvdc_memory_hardware_buffer, &hvdc_memory_rpcmem,
#endif
        &hvdc_memory_memfd, NULL};
    return kinds;
}

static uint8_t pattern(uint32_t at) { return (uint8_t)(at * 2654435761u >> 24); }

static bool written_is_read(const hvdc_memory_kind *kind, hvdc_memory *memory, hvdc_failure *failure) {
    uint8_t *other = NULL;
    if (!hvdc_memory_map(memory->fd, memory->bytes, false, &other, failure)) return false;
    bool right = kind->begin_write(memory, failure);
    for (uint32_t i = 0; right && i < memory->bytes; i++) memory->data[i] = pattern(i);
    right = right && kind->end_write(memory, failure);
    for (uint32_t i = 0; right && i < memory->bytes; i++)
        if (other[i] != pattern(i))
            right = hvdc_fail(failure, HVDC_FAILURE_DEVICE, "%s: wrote %u at byte %u and read %u", kind->name,
                              (unsigned)pattern(i), (unsigned)i, (unsigned)other[i]);
    (void)munmap(other, (size_t)memory->bytes);
    return right;
}

bool hvdc_memory_probe(const hvdc_memory_kind *kind, hvdc_failure *failure) {
    hvdc_memory memory;
    if (!kind->create("hvdc-probe", PROBE_BYTES, &memory, failure)) return false;
    bool right = written_is_read(kind, &memory, failure);
    kind->close(&memory);
    return right;
}

const hvdc_memory_kind *hvdc_memory_choose(hvdc_failure *failure) {
    hvdc_failure last = {.message = "this build has no kind of it"};
    for (const hvdc_memory_kind *const *kind = hvdc_memory_kinds(); *kind != NULL; kind++)
        if (hvdc_memory_probe(*kind, &last)) return *kind;
    hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no kind of shared memory works here; the last one said: %.400s",
              last.message);
    return NULL;
}

static bool add_seals(hvdc_memory *memory, int seals, hvdc_failure *failure) {
    return fcntl(memory->fd, F_ADD_SEALS, seals) == 0 ||
           hvdc_fail(failure, HVDC_FAILURE_MEMORY, "shared memory cannot be sealed: %s", strerror(errno));
}

/* A memfd can be opened again through /proc, with fewer rights than it was made with. */
static bool reopen_for_reading(hvdc_memory *memory, hvdc_failure *failure) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", memory->fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                         "shared memory cannot be opened for reading only: %s; is /proc mounted?", strerror(errno));
    (void)close(memory->fd);
    memory->fd = fd;
    return true;
}

bool hvdc_memory_seal(const hvdc_memory_kind *kind, hvdc_memory *memory, hvdc_failure *failure) {
    if (!kind->sealable)
        return mprotect(memory->data, (size_t)memory->bytes, PROT_READ) == 0 ||
               hvdc_fail(failure, HVDC_FAILURE_MEMORY, "shared memory cannot be made read-only: %s", strerror(errno));
    unmap(memory); /* the kernel refuses the seal while a writable mapping exists */
    return add_seals(memory, SEALED, failure) && reopen_for_reading(memory, failure) &&
           hvdc_memory_map(memory->fd, memory->bytes, false, &memory->data, failure);
}

bool hvdc_memory_fix_size(const hvdc_memory_kind *kind, hvdc_memory *memory, hvdc_failure *failure) {
    return !kind->sealable || add_seals(memory, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW, failure);
}

static bool is_as_said(int fd, uint64_t bytes, bool sealed, hvdc_failure *failure) {
    struct stat status;
    if (fstat(fd, &status) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "the other process passed a descriptor that says nothing: %s",
                         strerror(errno));
    /* A DMA-BUF tells its size by seeking only. */
    off_t size = S_ISREG(status.st_mode) ? status.st_size : lseek(fd, 0, SEEK_END);
    if (size < 0 || (uint64_t)size != bytes)
        return hvdc_fail(failure, HVDC_FAILURE_PEER,
                         "the other process passed shared memory of %lld bytes where %" PRIu64 " were agreed",
                         (long long)size, bytes);
    int seals = fcntl(fd, F_GET_SEALS);
    int wanted = sealed ? SEALED : F_SEAL_SHRINK | F_SEAL_GROW; /* a size that shrinks is a SIGBUS */
    if (seals >= 0 && (seals & wanted) != wanted)
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "the other process passed shared memory that can still be %s",
                         sealed && !(seals & F_SEAL_WRITE) ? "written" : "resized");
    return true;
}

bool hvdc_memory_import(int fd, uint64_t bytes, bool sealed, hvdc_memory *memory, hvdc_failure *failure) {
    *memory = HVDC_NO_MEMORY;
    if (!is_as_said(fd, bytes, sealed, failure) || !hvdc_memory_map(fd, bytes, !sealed, &memory->data, failure)) {
        (void)close(fd);
        return false;
    }
    memory->fd = fd;
    memory->bytes = bytes;
    return true;
}

bool hvdc_memory_fits(const char *what, uint64_t bytes, uint64_t limit_bytes, hvdc_failure *failure) {
    uint64_t room = limit_bytes != 0 ? limit_bytes : hvdc_memory_available_bytes();
    return bytes <= room ||
           hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%s take %.1f MiB of shared memory and %.1f MiB are %s; %s", what,
                     (double)bytes / 1048576.0, (double)room / 1048576.0, limit_bytes != 0 ? "allowed" : "available",
                     limit_bytes != 0 ? "raise the limit, or take a smaller video or fewer slots"
                                      : "close other programs, or take a smaller video or fewer slots");
}
