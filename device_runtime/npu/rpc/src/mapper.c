/* What the DSP maps, asked by the CPU. */
#include <inttypes.h>
#include <stdlib.h>

#include "hvdc/dsp.h"
#include "link.h"

struct mapped {
    void *data;
    uint64_t bytes;
    int fd;
    uint32_t region;
};

struct hvdc_dsp_mapper {
    hvdc_rpc_link link;
    struct mapped mapped[HVDC_RPC_REGIONS];
    uint32_t count;
};

static bool greet(hvdc_dsp_mapper *m, hvdc_dsp_description *description, hvdc_failure *failure) {
    hvdc_rpc_hello_in hello = {.version = HVDC_RUNTIME_VERSION}; /* no artifact: nothing will be attached */
    hvdc_rpc_hello_out facts;
    if (!hvdc_link_call(&m->link, HVDC_RPC_hello, &hello, &facts, NULL, failure)) return false;
    *description =
        (hvdc_dsp_description){.arch = facts.arch, .contexts = facts.contexts, .vtcm_bytes = facts.vtcm_bytes};
    return true;
}

bool hvdc_dsp_mapper_open(const hvdc_dsp_options *options, hvdc_dsp_mapper **mapper, hvdc_dsp_description *description,
                          hvdc_failure *failure) {
    const hvdc_dsp_options defaults = {.library = NULL};
    hvdc_dsp_mapper *m = calloc(1, sizeof *m);
    *mapper = NULL;
    if (m == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a session with the DSP");
    if (!hvdc_link_open(options == NULL ? &defaults : options, &m->link, failure)) {
        free(m);
        return false;
    }
    if (!greet(m, description, failure)) {
        hvdc_dsp_mapper_close(m);
        return false;
    }
    *mapper = m;
    return true;
}

void hvdc_dsp_mapper_close(hvdc_dsp_mapper *m) {
    hvdc_failure unheard;
    if (m == NULL) return;
    while (m->count > 0u && !m->link.is_lost && hvdc_dsp_mapper_unmap(m, &unheard)) continue;
    hvdc_link_close(&m->link);
    free(m);
}

bool hvdc_dsp_mapper_map(hvdc_dsp_mapper *m, void *data, int fd, uint64_t bytes, hvdc_failure *failure) {
    hvdc_rpc_map_in in = {.fd = (uint32_t)fd, .bytes = bytes, .writable = 1};
    hvdc_rpc_map_out out;
    if (m->count == HVDC_RPC_REGIONS)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a session of this runtime has no more than %u regions",
                         HVDC_RPC_REGIONS);
    if (m->link.map(HVDC_REMOTE_CDSP, fd, data, 0, (size_t)bytes, HVDC_REMOTE_MAP_FD_DELAYED) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "FastRPC does not take a descriptor of %" PRIu64 " bytes",
                         bytes);
    if (!hvdc_link_call(&m->link, HVDC_RPC_map, &in, &out, NULL, failure)) {
        (void)m->link.unmap(HVDC_REMOTE_CDSP, fd, data, (size_t)bytes);
        return false;
    }
    m->mapped[m->count++] = (struct mapped){.data = data, .bytes = bytes, .fd = fd, .region = out.region};
    return true;
}

bool hvdc_dsp_mapper_unmap(hvdc_dsp_mapper *m, hvdc_failure *failure) {
    if (m->count == 0u) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "nothing is mapped");
    const struct mapped *last = &m->mapped[--m->count];
    hvdc_rpc_unmap_in in = {.region = last->region};
    hvdc_rpc_unmap_out out;
    const bool good = hvdc_link_call(&m->link, HVDC_RPC_unmap, &in, &out, NULL, failure);
    return (m->link.unmap(HVDC_REMOTE_CDSP, last->fd, last->data, (size_t)last->bytes) == 0 ||
            hvdc_fail(failure, HVDC_FAILURE_DEVICE, "FastRPC does not give a descriptor back")) &&
           good;
}

bool hvdc_dsp_mapper_invert(hvdc_dsp_mapper *m, uint64_t offset, uint64_t bytes, hvdc_failure *failure) {
    if (m->count == 0u) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "nothing is mapped");
    hvdc_rpc_invert_in in = {.region = m->mapped[m->count - 1u].region, .offset = offset, .bytes = bytes};
    hvdc_rpc_invert_out out;
    return hvdc_link_call(&m->link, HVDC_RPC_invert, &in, &out, NULL, failure);
}
