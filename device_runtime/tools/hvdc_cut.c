/* Asks the policy, for tests. Each line of stdin is a question, with numbers as C's hexadecimal floats or decimals:
 *
 *     best T_G T_N T_V executions                                  "cut period_s", or "refused"
 *     observed before_s seconds count weight                       "seconds"
 *     meeting T_G T_N T_V executions best gpu_s npu_s handoff_s    "cut"
 *     in-time T_G T_N T_V executions most gpu_s npu_s handoff_s allowed_s from_start    "cut begin_s"
 *     stream POLICY T_G T_N T_V executions handoff_s deadline_s from_start    "begun", or "refused": what follows is of it
 *     gpu-done blocks seconds                                      "T_G", as observed
 *     npu-done blocks seconds decode_s                             "T_N T_V"
 *     decide now_s arrival_s N, and N times cut gpu_start_s gpu_end_s npu_start_s (nan: not yet)    "cut not_before_s"
 *
 * Seconds are answered as hexadecimal floats. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hvdc/stream_policy.h"

/* NOLINTBEGIN(cert-err34-c,bugprone-unchecked-string-to-number-conversion): tests say numbers that fit */

#define VIDEOS_MAX 16u /* in flight */

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

static bool stream(question *q, hvdc_stream_policy *policy) {
    hvdc_policy_options options = {.policy = HVDC_POLICY_STATIC};
    hvdc_failure failure;
    char name[16];
    unsigned from_start;
    if (scanf("%15s", name) != 1 || !hvdc_policy_of_name(name, &options.policy) || !read_rates(q) ||
        scanf("%lf %lf %u", &options.handoff_s, &options.deadline_s, &from_start) != 3)
        return false;
    options.rates = q->rates;
    options.from_start = from_start != 0;
    (void)printf("%s\n", hvdc_stream_policy_begin(&options, q->executions, policy, &failure) ? "begun" : "refused");
    return true;
}

static bool gpu_done(hvdc_stream_policy *policy) {
    uint32_t blocks;
    double seconds;
    if (scanf("%" SCNu32 " %lf", &blocks, &seconds) != 2) return false;
    hvdc_stream_policy_gpu_done(policy, blocks, seconds);
    (void)printf("%a\n", policy->rates.gpu_block_s);
    return true;
}

static bool npu_done(hvdc_stream_policy *policy) {
    uint32_t blocks;
    double seconds, decode_s;
    if (scanf("%" SCNu32 " %lf %lf", &blocks, &seconds, &decode_s) != 3) return false;
    hvdc_stream_policy_npu_done(policy, blocks, seconds, decode_s);
    (void)printf("%a %a\n", policy->rates.npu_block_s, policy->rates.decode_s);
    return true;
}

static bool decide(const hvdc_stream_policy *policy) {
    hvdc_in_flight on_way[VIDEOS_MAX];
    hvdc_cut_decision decision;
    hvdc_failure failure;
    double now_s, arrival_s;
    uint32_t count;
    if (scanf("%lf %lf %" SCNu32, &now_s, &arrival_s, &count) != 3 || count > VIDEOS_MAX) return false;
    for (uint32_t i = 0; i < count; i++)
        if (scanf("%" SCNu32 " %lf %lf %lf", &on_way[i].cut, &on_way[i].gpu_start_s, &on_way[i].gpu_end_s,
                  &on_way[i].npu_start_s) != 4)
            return false;
    if (!hvdc_stream_policy_decide(policy, now_s, arrival_s, on_way, count, &decision, &failure)) return false;
    (void)printf("%" PRIu32 " %a\n", decision.cut, decision.not_before_s);
    return true;
}

int main(void) {
    hvdc_stream_policy policy = {.executions = 0};
    char what[16];
    question q = {.executions = 0};
    while (scanf("%15s", what) == 1) {
        bool understood = strcmp(what, "best") == 0       ? best(&q)
                          : strcmp(what, "observed") == 0 ? observed()
                          : strcmp(what, "meeting") == 0  ? meeting(&q)
                          : strcmp(what, "in-time") == 0  ? in_time(&q)
                          : strcmp(what, "stream") == 0   ? stream(&q, &policy)
                          : strcmp(what, "gpu-done") == 0 ? gpu_done(&policy)
                          : strcmp(what, "npu-done") == 0 ? npu_done(&policy)
                          : strcmp(what, "decide") == 0   ? decide(&policy)
                                                          : false;
        if (!understood) {
            (void)fprintf(stderr, "what is %s? see the start of hvdc_cut.c\n", what);
            return 2;
        }
    }
    return 0;
}

/* NOLINTEND(cert-err34-c,bugprone-unchecked-string-to-number-conversion) */
