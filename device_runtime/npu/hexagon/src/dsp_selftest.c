/* The self-test's way to a session, which holds VTCM; the matrix unit is opened in it here. */
#include "dsp.h"
#include "hmx_staged.h"
#include "selftest.h"

bool hvdc_dsp_selftest(const hvdc_dsp_units *units, char *report, uint32_t bytes, uint32_t *failed, uint32_t *worthless,
                       hvdc_failure *failure) {
    static hvdc_selftest_result results[HVDC_SELFTEST_CHECKS_MOST]; /* too large for a thread's stack */
    const bool is_open = hvdc_hmx_staged() != NULL;
    if (!is_open && !hvdc_hmx_staged_open(units->vtcm, units->vtcm_bytes, units->context, failure)) return false;
    const hvdc_selftest_units asked = {hvdc_hmx_staged(), units->vtcm, units->vtcm_bytes, NULL};
    const uint32_t count = hvdc_selftest(&asked, results);
    *failed = hvdc_selftest_text(results, count, report, bytes);
    *worthless = hvdc_selftest_worthless(results, count);
    if (!is_open) hvdc_hmx_staged_close();
    return true;
}
