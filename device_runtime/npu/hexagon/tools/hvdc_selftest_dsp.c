/* hvdc_selftest_dsp: the DSP's self-test (selftest.h) where a program takes the DSP's place, with the matrix unit's model.
 *
 *   hvdc_selftest_dsp [KIB [NAME]]   of VTCM, 8192 unless it says; checks whose names begin so, or all
 *
 * A line for each check. Exit status: 0 if all passed, 1 if not or there is no such check, 2 if it could not begin. */
#include <stdio.h>
#include <stdlib.h>

#include "hmx_staged.h"
#include "selftest.h"
#include "vtcm.h"

#define TEXT_BYTES 16384u

int main(int argc, char **argv) {
    static char text[TEXT_BYTES];
    hvdc_selftest_result results[HVDC_SELFTEST_CHECKS_MOST];
    hvdc_failure failure;
    uint32_t bytes = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) << 10 : HVDC_VTCM_V79_BYTES;
    uint8_t *memory = calloc(1, (size_t)bytes + HVDC_VTCM_BANK_BYTES);
    if (memory == NULL) {
        (void)fprintf(stderr, "hvdc_selftest_dsp: no memory for %u bytes of VTCM\n", (unsigned)bytes);
        return 2;
    }
    uint8_t *vtcm = memory + (HVDC_VTCM_BANK_BYTES - (uintptr_t)memory % HVDC_VTCM_BANK_BYTES); /* as a device's is */
    if (!hvdc_hmx_staged_open(vtcm, bytes, 0, &failure)) {
        (void)fprintf(stderr, "hvdc_selftest_dsp: %s\n", failure.message);
        free(memory);
        return 2;
    }
    const hvdc_selftest_units units = {
        .hmx = hvdc_hmx_staged(), .vtcm = vtcm, .vtcm_bytes = bytes, .only = argc > 2 ? argv[2] : NULL};
    uint32_t count = hvdc_selftest(&units, results);
    uint32_t failed = hvdc_selftest_text(results, count, text, sizeof text);
    hvdc_hmx_staged_close();
    free(memory);
    (void)fputs(text, stdout);
    return fflush(stdout) != 0 || failed != 0u || count == 0u;
}
