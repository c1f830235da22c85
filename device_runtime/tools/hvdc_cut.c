/* Asks the policy, for tests: each line of stdin is "gpu_block_s npu_block_s decode_s executions", in C's hexadecimal
 * floats or decimals; the answer is "cut period_s", the period in hexadecimal, or "refused". */
#include <inttypes.h>
#include <stdio.h>

#include "hvdc/policy.h"

int main(void) {
    hvdc_rates rates;
    uint32_t executions, cut;
    /* NOLINTNEXTLINE(cert-err34-c,bugprone-unchecked-string-to-number-conversion): tests say numbers that fit */
    while (scanf("%lf %lf %lf %" SCNu32, &rates.gpu_block_s, &rates.npu_block_s, &rates.decode_s, &executions) == 4) {
        hvdc_failure failure;
        if (hvdc_best_cut(&rates, executions, &cut, &failure))
            (void)printf("%" PRIu32 " %a\n", cut, hvdc_period_s(&rates, executions, cut));
        else
            (void)printf("refused\n");
    }
    return 0;
}
