/* The DSP's system on a phone. Compiled only: whether these calls do there what their sources say is for a phone to
 * tell. */
#include "dsp.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "hap.h"

#define ACQUIRE_TIMEOUT_US 1000000u
#define V79_CONTEXTS 6u

/* The C library's is not where every firmware has it. */
void *memalign(size_t alignment, size_t bytes);

void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int timespec_get(struct timespec *now, int base) {
    const unsigned long long us = HAP_perf_get_time_us();
    *now = (struct timespec){.tv_sec = (long long)(us / 1000000u), .tv_nsec = (long)(us % 1000000u * 1000u)};
    return base;
}

bool hvdc_dsp_map(int fd, uint64_t bytes, bool writable, uint8_t **data, hvdc_failure *failure) {
    const int protection = writable ? HAP_PROT_READ | HAP_PROT_WRITE : HAP_PROT_READ;
    if (bytes > INT32_MAX)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "%" PRIu64 " bytes are more than the DSP maps at once", bytes);
    void *at = HAP_mmap(NULL, (int)bytes, protection, 0, fd, 0);
    if (at == NULL || at == (void *)-1)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                         "the DSP cannot map descriptor %d of %" PRIu64 " MiB: a session has room for about 3200 MiB",
                         fd, bytes >> 20);
    *data = at;
    return true;
}

void hvdc_dsp_unmap(uint8_t *data, uint64_t bytes) { (void)HAP_munmap(data, (int)bytes); }

static bool clean(const void *data, uint64_t bytes, int operation, hvdc_failure *failure) {
    const int result = qurt_mem_cache_clean((unsigned)(uintptr_t)data, (unsigned)bytes, operation, QURT_MEM_DCACHE);
    return result == 0 ||
           hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                     "the DSP's caches are not cleaned for %" PRIu64 " bytes: QuRT's code %d", bytes, result);
}

bool hvdc_dsp_before_read(const void *data, uint64_t bytes, hvdc_failure *failure) {
    return clean(data, bytes, QURT_MEM_CACHE_INVALIDATE, failure);
}

bool hvdc_dsp_after_write(const void *data, uint64_t bytes, hvdc_failure *failure) {
    return clean(data, bytes, QURT_MEM_CACHE_FLUSH, failure);
}

static bool ask(void *client, hap_power_request *request, const char *what, hvdc_failure *failure) {
    const int result = HAP_power_set(client, request);
    return result == 0 ||
           hvdc_fail(failure, HVDC_FAILURE_DEVICE, "the DSP does not change %s: HAP's code %d", what, result);
}

bool hvdc_dsp_power(void *client, bool up, hvdc_failure *failure) {
    const hap_corners most = {.target = HAP_DCVS_CORNER_MAX, .least = HAP_DCVS_CORNER_MAX, .most = HAP_DCVS_CORNER_MAX};
    hap_power_request type = {.type = HAP_POWER_SET_APPTYPE, .of = {.apptype = HAP_POWER_COMPUTE_CLIENT}};
    hap_power_request clocks = {.type = HAP_POWER_SET_DCVS_V3,
                                .of = {.dcvs = {.set_enable = 1,
                                                .enable = 1,
                                                .option = HAP_DCVS_PERFORMANCE,
                                                .set_core = up,
                                                .core = most,
                                                .set_bus = up,
                                                .bus = most,
                                                .set_sleep_disable = 1,
                                                .sleep_disable = up}}};
    hap_power_request vector = {.type = HAP_POWER_SET_HVX, .of = {.power_up = up}};
    hap_power_request matrix = {.type = HAP_POWER_SET_HMX, .of = {.power_up = up}};
    return ask(client, &type, "its kind of client", failure) && ask(client, &clocks, "its clocks", failure) &&
           ask(client, &vector, "the vector unit's power", failure) &&
           ask(client, &matrix, "the matrix unit's power", failure);
}

static uint32_t vtcm_bytes_here(void) {
    unsigned bytes = 0;
    if (compute_resource_query_VTCM != NULL) (void)compute_resource_query_VTCM(0, &bytes, NULL, NULL, NULL);
    return bytes;
}

/* Of no other session; all there is where the firmware does not say. */
static uint32_t vtcm_free_bytes(void) {
    unsigned bytes = 0, free_bytes = 0;
    if (compute_resource_query_VTCM == NULL || compute_resource_query_VTCM(0, &bytes, NULL, &free_bytes, NULL) != 0 ||
        free_bytes == 0)
        return vtcm_bytes_here();
    return free_bytes;
}

static uint32_t within(uint32_t bytes, uint32_t least_bytes, uint32_t most_bytes) {
    return bytes < least_bytes ? least_bytes : bytes > most_bytes ? most_bytes : bytes;
}

bool hvdc_dsp_acquire(uint32_t least_bytes, uint32_t most_bytes, hvdc_dsp_units *units, hvdc_failure *failure) {
    hap_compute_attributes attributes = {{0}};
    /* What is free now: who asks for more may be kept waiting for it. It may have become less in between. */
    const unsigned wanted = within(vtcm_free_bytes(), least_bytes, most_bytes);
    void *vtcm = NULL;
    unsigned found = 0;
    *units = (hvdc_dsp_units){.context = 0};
    if (compute_resource_attr_init == NULL || compute_resource_attr_set_vtcm_param_v2 == NULL ||
        compute_resource_attr_set_hmx_param == NULL || compute_resource_attr_get_vtcm_ptr_v2 == NULL ||
        compute_resource_acquire == NULL || compute_resource_release == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this DSP's firmware has no compute resource manager");
    if (compute_resource_attr_init(&attributes) != 0 ||
        compute_resource_attr_set_vtcm_param_v2(&attributes, wanted, 0, least_bytes) != 0 ||
        compute_resource_attr_set_hmx_param(&attributes, 1) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "the DSP takes no request for %u bytes of VTCM", wanted);
    units->context = compute_resource_acquire(&attributes, ACQUIRE_TIMEOUT_US);
    if (units->context == 0)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                         "%u bytes of VTCM and the matrix unit are not free: close other programs that use the NPU",
                         (unsigned)least_bytes);
    if (compute_resource_attr_get_vtcm_ptr_v2(&attributes, &vtcm, &found) != 0 || vtcm == NULL || found < least_bytes) {
        hvdc_dsp_release(units);
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "%u bytes of VTCM were asked for and %u came",
                         (unsigned)least_bytes, found);
    }
    units->vtcm = vtcm;
    units->vtcm_bytes = found;
    return true;
}

void hvdc_dsp_release(hvdc_dsp_units *units) {
    if (units->context != 0) (void)compute_resource_release(units->context);
    *units = (hvdc_dsp_units){.context = 0};
}

hvdc_dsp_facts hvdc_dsp_describe(void) {
    const uint32_t contexts = (uint32_t)qurt_hvx_get_units() >> 8 & 255u;
    return (hvdc_dsp_facts){.arch = __HEXAGON_ARCH__,
                            .contexts = contexts == 0 ? V79_CONTEXTS : contexts,
                            .vtcm_bytes = vtcm_bytes_here(),
                            .has_unit = true};
}
