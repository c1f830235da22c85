/* The DSP's system as a Linux process: under qemu-hexagon, or in the process of a test. Descriptors are the client's, as
 * they are to a DSP; memory is that of Linux, so that caches agree. */
#if !defined(__hexagon__)
#define _POSIX_C_SOURCE 200809L
#endif

#include "dsp.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define VTCM_BYTES (8u << 20) /* V79's */
#define VTCM_ALIGNMENT 2048u  /* of tiles */

static uint32_t client; /* 0: this process */

void hvdc_dsp_serve(uint32_t client_pid) { client = client_pid; }

bool hvdc_dsp_map(int fd, uint64_t bytes, bool writable, uint8_t **data, hvdc_failure *failure) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%" PRIu32 "/fd/%d", client == 0 ? (uint32_t)getpid() : client, fd);
    const int own = open(path, writable ? O_RDWR : O_RDONLY);
    if (own < 0)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "descriptor %d of the client cannot be opened for %s", fd,
                         writable ? "writing" : "reading");
    const off_t size = lseek(own, 0, SEEK_END);
    void *at = MAP_FAILED;
    if (size >= 0 && (uint64_t)size >= bytes && bytes <= SIZE_MAX)
        at = mmap(NULL, (size_t)bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, own, 0);
    (void)close(own);
    if (at == MAP_FAILED)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                         "%" PRIu64 " bytes of descriptor %d, which has %" PRIi64 ", cannot be mapped", bytes, fd,
                         (int64_t)size);
    *data = at;
    return true;
}

void hvdc_dsp_unmap(uint8_t *data, uint64_t bytes) { (void)munmap(data, (size_t)bytes); }

bool hvdc_dsp_before_read(const void *data, uint64_t bytes, hvdc_failure *failure) {
    (void)data, (void)bytes, (void)failure;
    return true;
}

bool hvdc_dsp_after_write(const void *data, uint64_t bytes, hvdc_failure *failure) {
    (void)data, (void)bytes, (void)failure;
    return true;
}

bool hvdc_dsp_power(void *power_client, bool up, hvdc_failure *failure) {
    (void)power_client, (void)up, (void)failure;
    return true;
}

static bool is_held, has_unit;
static uint32_t lacking;

void hvdc_dsp_lack_vtcm(uint32_t bytes) { lacking = bytes < VTCM_BYTES ? bytes : VTCM_BYTES; }

void hvdc_dsp_use_unit(void) { has_unit = true; }

bool hvdc_dsp_acquire(uint32_t least_bytes, uint32_t most_bytes, hvdc_dsp_units *units, hvdc_failure *failure) {
    const uint32_t there = VTCM_BYTES - lacking, bytes = most_bytes < there ? most_bytes : there;
    if (is_held)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                         "VTCM and the matrix unit are held by another session: close it first");
    if (least_bytes > there)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "%" PRIu32 " bytes of VTCM are wanted and %" PRIu32 " are free",
                         least_bytes, there);
    const size_t whole = ((size_t)bytes + VTCM_ALIGNMENT - 1u) / VTCM_ALIGNMENT * VTCM_ALIGNMENT;
    uint8_t *vtcm = aligned_alloc(VTCM_ALIGNMENT, whole);
    if (vtcm == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory in the place of VTCM");
    *units = (hvdc_dsp_units){.context = 1, .vtcm = vtcm, .vtcm_bytes = bytes};
    is_held = true;
    return true;
}

void hvdc_dsp_release(hvdc_dsp_units *units) {
    free(units->vtcm);
    *units = (hvdc_dsp_units){.context = 0};
    is_held = false;
}

hvdc_dsp_facts hvdc_dsp_describe(void) {
#if defined(__hexagon__)
    const uint32_t arch = __HEXAGON_ARCH__;
#else
    const uint32_t arch = 0;
#endif
    return (hvdc_dsp_facts){
        .arch = arch, .contexts = 1, .vtcm_bytes = VTCM_BYTES, .adds_exactly = true, .has_unit = has_unit};
}

#if !defined(__hexagon__)
bool hvdc_dsp_selftest(const hvdc_dsp_units *units, char *report, uint32_t bytes, uint32_t *failed, uint32_t *worthless,
                       hvdc_failure *failure) {
    (void)units, (void)report, (void)bytes, (void)failed, (void)worthless;
    return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                     "what stands in for the DSP here is this machine's code, which has no units of a DSP to test");
}
#endif
