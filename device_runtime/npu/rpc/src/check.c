/* The DSP's self-test, asked by the CPU. */
#include <assert.h>
#include <string.h>

#include "hvdc/dsp.h"
#include "link.h"

static_assert(HVDC_DSP_REPORT_BYTES == HVDC_RPC_REPORT_BYTES, "one size of a report");

static bool ask(hvdc_rpc_link *link, uint32_t vtcm_bytes, char *report, uint32_t *failed,
                hvdc_dsp_description *description, hvdc_failure *failure) {
    hvdc_rpc_hello_in hello = {.version = HVDC_RUNTIME_VERSION}; /* no artifact: nothing will be attached */
    hvdc_rpc_hello_out facts;
    hvdc_rpc_power_in power = {.up = 1};
    hvdc_rpc_power_out powered;
    hvdc_rpc_selftest_in in = {.vtcm_bytes = vtcm_bytes};
    hvdc_rpc_selftest_out out;
    const hvdc_remote_arg buffer = {.buffer = {.data = report, .bytes = HVDC_RPC_REPORT_BYTES}};
    if (!hvdc_link_call(link, HVDC_RPC_hello, &hello, &facts, NULL, failure)) return false;
    *description =
        (hvdc_dsp_description){.arch = facts.arch, .contexts = facts.contexts, .vtcm_bytes = facts.vtcm_bytes};
    if (!hvdc_link_call(link, HVDC_RPC_power, &power, &powered, NULL, failure) ||
        !hvdc_link_call(link, HVDC_RPC_selftest, &in, &out, &buffer, failure))
        return false;
    report[HVDC_RPC_REPORT_BYTES - 1u] = 0;
    *failed = out.failed;
    return true;
}

bool hvdc_dsp_check(const hvdc_dsp_options *options, char report[HVDC_DSP_REPORT_BYTES], uint32_t *failed,
                    hvdc_dsp_description *description, hvdc_failure *failure) {
    const hvdc_dsp_options defaults = {.library = NULL};
    hvdc_rpc_link link;
    options = options == NULL ? &defaults : options;
    if (!hvdc_link_open(options, &link, failure)) return false;
    const bool done = ask(&link, options->vtcm_bytes, report, failed, description, failure);
    hvdc_link_close(&link);
    return done;
}
