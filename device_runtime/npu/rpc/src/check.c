/* The DSP's self-test, asked by the CPU. */
#include <assert.h>
#include <string.h>

#include "hvdc/dsp.h"
#include "link.h"

static_assert(HVDC_DSP_REPORT_BYTES == HVDC_RPC_REPORT_BYTES, "one size of a report");

bool hvdc_link_test_units(hvdc_rpc_link *link, uint32_t vtcm_bytes, hvdc_dsp_findings *findings,
                          hvdc_failure *failure) {
    hvdc_rpc_selftest_in in = {.vtcm_bytes = vtcm_bytes};
    hvdc_rpc_selftest_out out;
    const hvdc_remote_arg buffer = {.buffer = {.data = findings->report, .bytes = sizeof findings->report}};
    findings->failed = findings->worthless = 0;
    findings->report[0] = 0;
    if (!hvdc_link_call(link, HVDC_RPC_selftest, &in, &out, &buffer, failure)) return false;
    findings->report[sizeof findings->report - 1u] = 0;
    findings->failed = out.failed;
    findings->worthless = out.worthless;
    return true;
}

static bool ask(hvdc_rpc_link *link, uint32_t vtcm_bytes, hvdc_dsp_findings *findings,
                hvdc_dsp_description *description, hvdc_failure *failure) {
    hvdc_rpc_hello_in hello = {.version = HVDC_RUNTIME_VERSION}; /* no artifact: nothing will be attached */
    hvdc_rpc_hello_out facts;
    hvdc_rpc_power_in power = {.up = 1};
    hvdc_rpc_power_out powered;
    if (!hvdc_link_call(link, HVDC_RPC_hello, &hello, &facts, NULL, failure)) return false;
    *description =
        (hvdc_dsp_description){.arch = facts.arch, .contexts = facts.contexts, .vtcm_bytes = facts.vtcm_bytes};
    return hvdc_link_call(link, HVDC_RPC_power, &power, &powered, NULL, failure) &&
           hvdc_link_test_units(link, vtcm_bytes, findings, failure);
}

bool hvdc_dsp_check(const hvdc_dsp_options *options, hvdc_dsp_findings *findings, hvdc_dsp_description *description,
                    hvdc_failure *failure) {
    const hvdc_dsp_options defaults = {.library = NULL};
    hvdc_rpc_link link;
    options = options == NULL ? &defaults : options;
    if (!hvdc_link_open(options, &link, failure)) return false;
    const bool done = ask(&link, options->vtcm_bytes, findings, description, failure);
    hvdc_link_close(&link);
    return done;
}

bool hvdc_dsp_next_line(char **report, hvdc_dsp_line *line) {
    char **fields[] = {&line->name, &line->state, &line->why, &line->meaning};
    char *end = strchr(*report, '\n'), *at = *report;
    if (end == NULL) return false;
    *end = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char *tab = strchr(at, '\t');
        *fields[i] = at;
        if (tab != NULL) *tab = 0;
        at = tab == NULL ? end : tab + 1;
    }
    *report = end + 1;
    return true;
}
