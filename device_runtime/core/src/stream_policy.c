#include "hvdc/stream_policy.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"static", "replan", "adaptive", "deadline"};

#define COUNT (sizeof names / sizeof *names)

const char *hvdc_policy_name(enum hvdc_policy policy) { return (size_t)policy < COUNT ? names[policy] : "unknown"; }

bool hvdc_policy_of_name(const char *name, enum hvdc_policy *policy) {
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(name, names[i]) == 0) {
            *policy = (enum hvdc_policy)i;
            return true;
        }
    return false;
}

bool hvdc_stream_policy_begin(const hvdc_policy_options *options, uint32_t executions, hvdc_stream_policy *policy,
                              hvdc_failure *failure) {
    uint32_t cut;
    *policy = (hvdc_stream_policy){.options = *options, .executions = executions, .rates = options->rates};
    if (options->policy == HVDC_POLICY_STATIC) return true;
    if (options->policy > HVDC_POLICY_DEADLINE)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "there is no policy %d", (int)options->policy);
    if (!isfinite(options->handoff_s) || options->handoff_s < 0.0)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a handoff takes 0 s or more, not %g s", options->handoff_s);
    if (options->policy == HVDC_POLICY_DEADLINE && !(isfinite(options->deadline_s) && options->deadline_s > 0.0))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "policy deadline needs a deadline above 0 s, not %g s",
                         options->deadline_s);
    return hvdc_best_cut(&policy->rates, executions, &cut, failure);
}

/* As far as the rates tell: what is in flight goes through the engines in order. Sums and products are statements of
 * their own: see policy.c. */
static hvdc_ready when_ready(const hvdc_stream_policy *policy, double now_s, const hvdc_in_flight *in_flight,
                             uint32_t count) {
    double gpu_s = now_s, npu_s = now_s;
    for (uint32_t i = 0; i < count; i++) {
        const hvdc_in_flight *video = &in_flight[i];
        double handed_s = now_s;
        if (video->cut > 0 && isnan(video->gpu_end_s)) {
            double begin_s = isnan(video->gpu_start_s) ? gpu_s : video->gpu_start_s;
            double prefix_s = hvdc_gpu_stage_s(&policy->rates, video->cut);
            double end_s = begin_s + prefix_s;
            gpu_s = end_s > now_s ? end_s : now_s;
            handed_s = gpu_s + policy->options.handoff_s;
        }
        double start_s = isnan(video->npu_start_s) ? (handed_s > npu_s ? handed_s : npu_s) : video->npu_start_s;
        double suffix_s = hvdc_npu_stage_s(&policy->rates, policy->executions, video->cut);
        double end_s = start_s + suffix_s;
        npu_s = end_s > now_s ? end_s : now_s;
    }
    return (hvdc_ready){.gpu_s = gpu_s - now_s, .npu_s = npu_s - now_s, .handoff_s = policy->options.handoff_s};
}

bool hvdc_stream_policy_decide(const hvdc_stream_policy *policy, double now_s, double arrival_s,
                               const hvdc_in_flight *in_flight, uint32_t count, hvdc_cut_decision *decision,
                               hvdc_failure *failure) {
    const hvdc_policy_options *o = &policy->options;
    double begin_s = 0.0;
    uint32_t best;
    *decision = (hvdc_cut_decision){.ready = when_ready(policy, now_s, in_flight, count)};
    if (!hvdc_best_cut(&policy->rates, policy->executions, &best, failure)) return false;
    decision->cut = best;
    if (o->policy != HVDC_POLICY_REPLAN)
        decision->cut = hvdc_meeting_cut(&policy->rates, policy->executions, best, &decision->ready);
    if (o->policy == HVDC_POLICY_DEADLINE) {
        double allowed_s = o->deadline_s * (1.0 - HVDC_POLICY_RESERVE);
        if (!o->from_start) {
            allowed_s = arrival_s + allowed_s;
            allowed_s = allowed_s - now_s;
        }
        decision->cut = hvdc_cut_in_time(&policy->rates, policy->executions, decision->cut, &decision->ready, allowed_s,
                                         o->from_start, &begin_s);
    }
    decision->not_before_s = o->policy == HVDC_POLICY_DEADLINE ? now_s + begin_s : 0.0;
    return true;
}

void hvdc_stream_policy_gpu_done(hvdc_stream_policy *policy, uint32_t blocks, double seconds) {
    hvdc_rates *rates = &policy->rates;
    rates->gpu_block_s = hvdc_observed(rates->gpu_block_s, seconds, blocks, HVDC_POLICY_WEIGHT);
}

void hvdc_stream_policy_npu_done(hvdc_stream_policy *policy, uint32_t blocks, double seconds, double decode_s) {
    hvdc_rates *rates = &policy->rates;
    rates->npu_block_s = hvdc_observed(rates->npu_block_s, seconds, blocks, HVDC_POLICY_WEIGHT);
    rates->decode_s = hvdc_observed(rates->decode_s, decode_s, 1, HVDC_POLICY_WEIGHT);
}
