/* A session with the DSP: FastRPC's library, a handle of the skel, calls. */
#ifndef HVDC_RPC_LINK_H
#define HVDC_RPC_LINK_H

#include "hvdc/dsp.h"
#include "marshal.h"

typedef struct hvdc_rpc_link {
    void *library;
    int (*open)(const char *uri, uint64_t *handle);
    int (*invoke)(uint64_t handle, uint32_t scalars, hvdc_remote_arg *args);
    int (*close)(uint64_t handle);
    int (*session_control)(uint32_t request, void *data, uint32_t bytes);
    int (*handle_control)(uint32_t request, void *data, uint32_t bytes);
    int (*map)(int domain, int fd, void *address, int offset, size_t bytes, int flags);
    int (*unmap)(int domain, int fd, void *address, size_t bytes);
    uint64_t handle;
    bool is_open, is_lost;
} hvdc_rpc_link;

/* On failure nothing is left open. */
bool hvdc_link_open(const hvdc_dsp_options *options, hvdc_rpc_link *link, hvdc_failure *failure);
void hvdc_link_close(hvdc_rpc_link *link);

/* `in`, `out`: the method's records; `buffers`: its buffers, those given first. Fills in the ABI of `in`. The
 * engine's own sentence is the failure's. */
bool hvdc_link_call(hvdc_rpc_link *link, uint32_t method, void *in, void *out, const hvdc_remote_arg *buffers,
                    hvdc_failure *failure);

/* After hello and power, while nobody has the units. */
bool hvdc_link_test_units(hvdc_rpc_link *link, uint32_t vtcm_bytes, hvdc_dsp_findings *findings, hvdc_failure *failure);

#endif
