/* Asks the policy, for tests. Each line of stdin is a question, with numbers as C's hexadecimal floats or decimals:
 *
 *     best T_G T_N T_V executions                                  "cut period_s", or "refused"
 *     observed before_s seconds count weight                       "seconds"
 *     meeting T_G T_N T_V executions best gpu_s npu_s handoff_s    "cut"
 *     in-time T_G T_N T_V executions most gpu_s npu_s handoff_s allowed_s from_start    "cut begin_s"
 *
 * Seconds are answered as hexadecimal floats. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hvdc/policy.h"

/* NOLINTBEGIN(cert-err34-c,bugprone-unchecked-string-to-number-conversion): tests say numbers that fit */

typedef struct question {
    hvdc_rates rates;
    uint32_t executions, cut;
    hvdc_ready ready;
} question;

static bool read_rates(question *q) {
    return scanf("%lf %lf %lf %" SCNu32, &q->rates.gpu_block_s, &q->rates.npu_block_s, &q->rates.decode_s,
                 &q->executions) == 4;
}

static bool read_ready(question *q) {
    return scanf("%" SCNu32 " %lf %lf %lf", &q->cut, &q->ready.gpu_s, &q->ready.npu_s, &q->ready.handoff_s) == 4;
}

static bool best(question *q) {
    hvdc_failure failure;
    if (!read_rates(q)) return false;
    if (hvdc_best_cut(&q->rates, q->executions, &q->cut, &failure))
        (void)printf("%" PRIu32 " %a\n", q->cut, hvdc_period_s(&q->rates, q->executions, q->cut));
    else
        (void)printf("refused\n");
    return true;
}

static bool observed(void) {
    double before_s, seconds, weight;
    uint32_t count;
    if (scanf("%lf %lf %" SCNu32 " %lf", &before_s, &seconds, &count, &weight) != 4) return false;
    (void)printf("%a\n", hvdc_observed(before_s, seconds, count, weight));
    return true;
}

static bool meeting(question *q) {
    if (!read_rates(q) || !read_ready(q)) return false;
    (void)printf("%" PRIu32 "\n", hvdc_meeting_cut(&q->rates, q->executions, q->cut, &q->ready));
    return true;
}

static bool in_time(question *q) {
    double allowed_s, begin_s;
    unsigned from_start;
    if (!read_rates(q) || !read_ready(q) || scanf("%lf %u", &allowed_s, &from_start) != 2) return false;
    uint32_t cut = hvdc_cut_in_time(&q->rates, q->executions, q->cut, &q->ready, allowed_s, from_start != 0, &begin_s);
    (void)printf("%" PRIu32 " %a\n", cut, begin_s);
    return true;
}

int main(void) {
    char what[16];
    question q = {.executions = 0};
    while (scanf("%15s", what) == 1) {
        bool understood = strcmp(what, "best") == 0       ? best(&q)
                          : strcmp(what, "observed") == 0 ? observed()
                          : strcmp(what, "meeting") == 0  ? meeting(&q)
                          : strcmp(what, "in-time") == 0  ? in_time(&q)
                                                          : false;
        if (!understood) {
            (void)fprintf(stderr, "what is %s? see the start of hvdc_cut.c\n", what);
            return 2;
        }
    }
    return 0;
}

/* NOLINTEND(cert-err34-c,bugprone-unchecked-string-to-number-conversion) */
