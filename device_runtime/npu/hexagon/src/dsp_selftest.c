/* The self-test's way to a session. On a device, acquiring VTCM opened the matrix unit; an emulator's model is opened here. */
#include "dsp.h"
#include "hmx_staged.h"
#include "selftest.h"

bool hvdc_dsp_selftest(const hvdc_dsp_units *units, char *report, uint32_t bytes, uint32_t *failed,
                       hvdc_failure *failure) {
    static hvdc_selftest_result results[HVDC_SELFTEST_CHECKS_MOST]; /* too large for a thread's stack */
    const bool is_open = hvdc_hmx_staged() != NULL;
    if (!is_open && !hvdc_hmx_staged_open(units->vtcm, units->vtcm_bytes, units->context, failure)) return false;
    const hvdc_selftest_units asked = {hvdc_hmx_staged(), units->vtcm, units->vtcm_bytes};
    *failed = hvdc_selftest_text(results, hvdc_selftest(&asked, results), report, bytes);
    if (!is_open) hvdc_hmx_staged_close();
    return true;
}
