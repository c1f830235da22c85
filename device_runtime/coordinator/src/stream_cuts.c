/* A cut for each video: what a policy sees of a stream, and what it is told. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "hvdc/clock.h"
#include "stream.h"

bool hvdc_has_policy(const hvdc_stream *stream) { return stream->options.policy.policy != HVDC_POLICY_STATIC; }

static double seconds_between(uint64_t start_ns, uint64_t end_ns) {
    return end_ns > start_ns ? (double)(end_ns - start_ns) * 1e-9 : 0.0;
}

static double when(const hvdc_running *r, uint64_t at_ns) { return at_ns == 0 ? NAN : hvdc_running_s(r, at_ns); }

/* A video that the GPU has left, or never had, is done there; so is one that only waits for the decoder. */
static hvdc_in_flight seen(const hvdc_running *r, uint32_t slot) {
    const hvdc_on_way *way = &r->on_way[slot];
    const bool is_kept = r->videos[slot].kept;
    return (hvdc_in_flight){.video = r->videos[slot].video,
                            .cut = is_kept ? hvdc_executions(&r->stream->trajectory) : r->videos[slot].cut,
                            .gpu_start_s = when(r, way->gpu_start_ns),
                            .gpu_end_s = is_kept       ? 0.0
                                         : way->handed ? hvdc_running_s(r, way->gpu_end_ns)
                                                       : NAN,
                            .npu_start_s = when(r, way->npu_start_ns)};
}

static uint32_t in_flight(const hvdc_running *r, uint32_t but, hvdc_in_flight videos[HVDC_SLOTS_MAX]) {
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < r->slot_count; slot++) {
        if (slot == but || r->use[slot] == HVDC_SLOT_FREE) continue;
        const hvdc_in_flight video = seen(r, slot);
        uint32_t at = count++;
        for (; at > 0 && videos[at - 1].video > video.video; at--) videos[at] = videos[at - 1];
        videos[at] = video;
    }
    return count;
}

static void say(hvdc_running *r, uint32_t slot, const hvdc_in_flight *on_way, uint32_t count) {
    const hvdc_stream_io *io = &r->stream->io;
    const hvdc_video *video = &r->videos[slot];
    const hvdc_cut_choice *c = &video->choice;
    char text[256], held[64] = "";
    if (c->not_before_s > c->at_s)
        (void)snprintf(held, sizeof held, ", which begins it in %.4g s", c->not_before_s - c->at_s);
    (void)snprintf(text, sizeof text,
                   "video %" PRIu32 ": cut %" PRIu32 " of %" PRIu32
                   ": a block takes %.4g s on the GPU%s, %.4g s on the NPU, decoding %.4g s; they are free in %.4g s "
                   "and %.4g s",
                   video->video, video->cut, hvdc_executions(&r->stream->trajectory), c->rates.gpu_block_s, held,
                   c->rates.npu_block_s, c->rates.decode_s, c->ready.gpu_s, c->ready.npu_s);
    hvdc_trace_note(&r->trace, hvdc_clock_ns(), text);
    const hvdc_progress progress = {.event = HVDC_EVENT_CUT,
                                    .video = video->video,
                                    .position = video->cut,
                                    .record = video,
                                    .in_flight = on_way,
                                    .in_flight_count = count,
                                    .text = text,
                                    .at_s = c->at_s};
    if (io->progress != NULL) io->progress(io->context, &progress);
}

bool hvdc_running_choose_cut(hvdc_running *r, uint32_t slot) {
    hvdc_in_flight on_way[HVDC_SLOTS_MAX];
    hvdc_video *video = &r->videos[slot];
    hvdc_cut_decision decision;
    if (!hvdc_has_policy(r->stream)) {
        video->cut = hvdc_gpu_part(r->stream);
        return true;
    }
    if (!r->gpu) return true; /* 0 */
    const uint32_t count = in_flight(r, slot, on_way);
    const double now_s = hvdc_running_s(r, hvdc_clock_ns()), arrival_s = hvdc_running_s(r, r->started_ns);
    if (!hvdc_stream_policy_decide(&r->policy, now_s, arrival_s, on_way, count, &decision, r->failure)) return false;
    video->cut = decision.cut;
    video->choice = (hvdc_cut_choice){.made = true,
                                      .at_s = now_s,
                                      .arrival_s = arrival_s,
                                      .not_before_s = decision.not_before_s,
                                      .rates = r->policy.rates,
                                      .gpu_videos = r->gpu_observed,
                                      .npu_videos = r->npu_observed,
                                      .ready = decision.ready};
    say(r, slot, on_way, count);
    return true;
}

void hvdc_running_gpu_observed(hvdc_running *r, uint32_t slot, uint32_t count) {
    const hvdc_on_way *way = &r->on_way[slot];
    r->videos[slot].gpu_stage_s = seconds_between(way->gpu_start_ns, way->gpu_end_ns);
    hvdc_stream_policy_gpu_done(&r->policy, count, r->videos[slot].gpu_stage_s);
    r->gpu_observed++;
}

void hvdc_running_npu_observed(hvdc_running *r, const hvdc_npu_job *job) {
    hvdc_video *video = &r->videos[job->slot];
    video->npu_stage_s = seconds_between(job->begun_ns, job->computed_ns);
    hvdc_stream_policy_npu_done(&r->policy, hvdc_executions(&r->stream->trajectory) - job->from, video->npu_stage_s,
                                video->decode_s);
    r->npu_observed++;
}
