/* What a stream does: which video is where, and who goes on with it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "hvdc/clock.h"
#include "sha256.h"
#include "stream.h"

static hvdc_result_key key_of(const hvdc_running *r, uint32_t slot) {
    const hvdc_stream *stream = r->stream;
    hvdc_result_key key = {.video = r->videos[slot].video,
                           .tokens = stream->trajectory.tokens,
                           .latent_values = stream->trajectory.latent_values,
                           .mode = stream->options.mode,
                           .cut = r->videos[slot].cut,
                           .policy = hvdc_has_policy(stream) ? hvdc_policy_name(stream->options.policy.policy) : "",
                           .gpu_share = stream->options.mode == HVDC_MODE_TENSOR ? stream->options.gpu_share : 0.0,
                           .npu_sums = stream->options.npu_sums == NULL ? "" : stream->options.npu_sums};
    if (stream->weights != NULL)
        memcpy(key.artifact, hvdc_artifact_header(hvdc_shared_weights_view(stream->weights)->artifact)->index_sha256,
               sizeof key.artifact);
    memcpy(key.input, r->inputs[slot], sizeof key.input);
    return key;
}

static bool load(hvdc_running *r, uint32_t slot, uint32_t video) {
    const hvdc_stream_io *io = &r->stream->io;
    hvdc_slot *to = &r->slots[slot];
    hvdc_span_of_time span = {
        .lane = HVDC_LANE_CPU, .activity = HVDC_DOES_LOAD, .video = video, .start_ns = hvdc_clock_ns()};
    r->videos[slot] = (hvdc_video){.video = video,
                                   .cut = hvdc_has_policy(r->stream) ? 0 : hvdc_gpu_part(r->stream),
                                   .started_s = hvdc_running_s(r, span.start_ns)};
    r->on_way[slot] = (hvdc_on_way){.handed = false};
    if (!io->load(io->context, video, to->latent[0], to->embeds, r->failure)) return false;
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, to->latent[0], (size_t)hvdc_latent_bytes(&r->stream->trajectory));
    hvdc_sha256_update(&sha, to->embeds, (size_t)hvdc_embeds_bytes(&r->stream->trajectory));
    hvdc_sha256_final(&sha, r->inputs[slot]);
    hvdc_slot_begin(to);
    r->is_kept[slot] = false;
    span.end_ns = hvdc_clock_ns();
    hvdc_trace_span(&r->trace, &span);
    return true;
}

static void record(hvdc_running *r, const hvdc_video *video) {
    if (r->report->videos != NULL) r->report->videos[video->video] = *video;
}

enum found { TO_DO, TO_DECODE, DONE_BEFORE, NOT_OURS };

/* What is left to do of the video that was just loaded. TO_DECODE: the slot has its final latent. */
static enum found finished_before(hvdc_running *r, uint32_t slot) {
    const hvdc_stream *stream = r->stream;
    const hvdc_stream_io *io = &stream->io;
    if (!stream->options.resume) return TO_DO;
    hvdc_result_key key = key_of(r, slot);
    hvdc_video *video = &r->videos[slot];
    float *latent = hvdc_slot_latent(&r->slots[slot], stream->trajectory.steps);
    bool decoded = true;
    switch (hvdc_result_check(stream->options.directory, &key, video, latent, r->failure)) {
        case HVDC_RESULT_ABSENT:
        case HVDC_RESULT_DAMAGED: return TO_DO;
        case HVDC_RESULT_OTHER: return NOT_OURS;
        case HVDC_RESULT_VERIFIED: break;
    }
    if (io->decode != NULL && io->check_decoded != NULL &&
        !io->check_decoded(io->context, video->video, latent, &decoded, r->failure))
        return NOT_OURS;
    video->kept = !decoded;
    if (!decoded) return TO_DECODE;
    video->skipped = true;
    video->started_s = 0;
    r->report->skipped++;
    record(r, video);
    hvdc_running_tell(r, HVDC_EVENT_SKIPPED, video->video, hvdc_executions(&r->stream->trajectory), video, NULL);
    return DONE_BEFORE;
}

static void for_npu(hvdc_running *r, uint32_t slot, uint32_t from, uint64_t ready_ns) {
    r->use[slot] = HVDC_SLOT_FOR_NPU;
    r->on_way[slot].from = from;
    r->on_way[slot].ready_ns = ready_ns;
}

static void submit(hvdc_running *r, uint32_t slot) {
    const hvdc_on_way *way = &r->on_way[slot];
    hvdc_npu_job job = {.video = r->videos[slot].video,
                        .slot = slot,
                        .from = way->from,
                        .ready_ns = way->ready_ns,
                        .shared = r->gpu && r->sharing.partner != NULL};
    r->use[slot] = HVDC_SLOT_ON_NPU;
    r->videos[slot].gpu_blocks = job.shared ? hvdc_executions(&r->stream->trajectory) : way->from;
    hvdc_npu_lane_submit(r->lane, job);
}

/* The slot with the first of the videos that `is_one` holds for, or slot_count. */
static uint32_t first_of(const hvdc_running *r, bool (*is_one)(const hvdc_running *r, uint32_t slot)) {
    uint32_t first = r->slot_count;
    for (uint32_t slot = 0; slot < r->slot_count; slot++)
        if (is_one(r, slot) && (first == r->slot_count || r->videos[slot].video < r->videos[first].video)) first = slot;
    return first;
}

static bool is_held(const hvdc_running *r, uint32_t slot) { return r->use[slot] == HVDC_SLOT_HELD; }

static bool is_before_npu(const hvdc_running *r, uint32_t slot) {
    const bool in_order = r->stream->options.mode != HVDC_MODE_DP;
    return r->use[slot] == HVDC_SLOT_FOR_NPU ||
           (in_order && (r->use[slot] == HVDC_SLOT_HELD || r->use[slot] == HVDC_SLOT_ON_GPU));
}

/* The NPU's thread takes what it has at once: it hears of a video only when it has all that are before it, which may
 * still be on the GPU while this one has no block there. */
static void pass_to_npu(hvdc_running *r) {
    for (;;) {
        const uint32_t slot = first_of(r, is_before_npu);
        if (slot == r->slot_count || r->use[slot] != HVDC_SLOT_FOR_NPU) return;
        submit(r, slot);
    }
}

static void to_decoder(hvdc_running *r, uint32_t slot) {
    r->use[slot] = HVDC_SLOT_ON_NPU;
    r->is_kept[slot] = true;
    hvdc_npu_lane_submit(r->lane, (hvdc_npu_job){.video = r->videos[slot].video,
                                                 .slot = slot,
                                                 .from = hvdc_executions(&r->stream->trajectory),
                                                 .kept = true});
}

static bool is_first(const hvdc_running *r, uint32_t slot) {
    for (uint32_t other = 0; other < r->slot_count; other++)
        if (r->use[other] != HVDC_SLOT_FREE && r->videos[other].video < r->videos[slot].video) return false;
    return true;
}

/* Rates that are far off may hold a video for hours; when all before it are finished, both engines wait for it. */
double hvdc_running_hold_s(const hvdc_running *r) {
    const uint32_t slot = first_of(r, is_held);
    if (slot == r->slot_count) return INFINITY;
    return is_first(r, slot) ? 0 : r->videos[slot].choice.not_before_s - hvdc_running_s(r, hvdc_clock_ns());
}

/* In the order of the videos: one that is not due holds back those behind it. No block of it is executed: a stream that
 * is asked to stop does not begin it. */
static bool release(hvdc_running *r) {
    for (;;) {
        const uint32_t slot = first_of(r, is_held);
        hvdc_failure why;
        if (slot < r->slot_count && r->stopping) {
            r->use[slot] = HVDC_SLOT_FREE;
            continue;
        }
        if (slot == r->slot_count || (r->gpu && hvdc_running_hold_s(r) > 0)) return true;
        if (!r->gpu) {
            for_npu(r, slot, 0, 0);
            continue;
        }
        r->use[slot] = HVDC_SLOT_ON_GPU;
        const hvdc_assignment todo = {
            .video = r->videos[slot].video, .slot = slot, .from = 0, .to = r->videos[slot].cut};
        if (!hvdc_gpu_peer_assign(&r->peer, todo, &why) && !hvdc_running_gpu_lost(r, &why)) return false;
    }
}

/* To the engines, what is due there. */
static bool pass_on(hvdc_running *r) {
    if (!release(r)) return false;
    pass_to_npu(r);
    return true;
}

/* Where the next video would begin. Data parallel: with the engine that is idle, the faster one first; a video that
 * waits for an engine could have been the other one's. */
static enum hvdc_slot_use next_engine(const hvdc_running *r) {
    if (!r->gpu || r->sharing.partner != NULL) return HVDC_SLOT_ON_NPU;
    if (r->stream->options.mode != HVDC_MODE_DP) return HVDC_SLOT_ON_GPU;
    if (hvdc_npu_lane_load(r->lane) == 0) return HVDC_SLOT_ON_NPU;
    return r->peer.todo_count == 0 ? HVDC_SLOT_ON_GPU : HVDC_SLOT_FREE;
}

static bool fill_slot(hvdc_running *r, uint32_t slot) {
    while (r->next_video < r->stream->options.videos && !r->stopping) {
        enum hvdc_slot_use engine = next_engine(r);
        if (engine == HVDC_SLOT_FREE) return true;
        if (!load(r, slot, r->next_video++)) return false;
        enum found found = finished_before(r, slot);
        if (found == NOT_OURS) return false;
        if (found == DONE_BEFORE) continue;
        if (r->first_block_ns == 0) r->first_block_ns = hvdc_clock_ns();
        if (found == TO_DECODE) {
            to_decoder(r, slot);
            return true;
        }
        if (!hvdc_running_choose_cut(r, slot)) return false;
        if (engine == HVDC_SLOT_ON_GPU && r->videos[slot].cut > 0)
            r->use[slot] = HVDC_SLOT_HELD;
        else
            for_npu(r, slot, 0, 0);
        return pass_on(r);
    }
    return true;
}

bool hvdc_running_fill(hvdc_running *r) {
    bool going = pass_on(r);
    for (uint32_t slot = 0; going && slot < r->slot_count; slot++)
        if (r->use[slot] == HVDC_SLOT_FREE) going = fill_slot(r, slot);
    return going;
}

bool hvdc_running_is_busy(const hvdc_running *r) {
    for (uint32_t slot = 0; slot < r->slot_count; slot++)
        if (r->use[slot] != HVDC_SLOT_FREE) return true;
    return r->next_video < r->stream->options.videos && !r->stopping;
}

bool hvdc_running_handed_over(hvdc_running *r, const hvdc_handoff *handoff) {
    uint32_t slot = handoff->done.slot, position = handoff->done.to;
    uint64_t now_ns = hvdc_clock_ns();
    hvdc_running_tell(r, HVDC_EVENT_HANDOFF, handoff->done.video, position, NULL, NULL);
    if (hvdc_slot_checksum(&r->slots[slot], position) == handoff->checksum) {
        r->on_way[slot].handed = true;
        hvdc_running_gpu_observed(r, slot, position - handoff->done.from);
        for_npu(r, slot, position, now_ns);
        pass_to_npu(r);
        return true;
    }
    hvdc_failure why;
    (void)hvdc_fail(&why, HVDC_FAILURE_PEER,
                    "what it handed over of video %" PRIu32 " is not what it computed: shared memory is not coherent",
                    handoff->done.video);
    r->peer.todo[r->peer.todo_count++] = handoff->done; /* it goes on from its last boundary, as the others do */
    return hvdc_running_gpu_lost(r, &why);
}

/* A video of the lost worker goes on where a step was whole, or, if that is in doubt too, from its beginning. */
static bool recover(hvdc_running *r, const hvdc_assignment *lost) {
    uint32_t slot = lost->slot, step = 0;
    if (!hvdc_slot_boundary(&r->slots[slot], &step) || step > lost->to / r->stream->trajectory.layers) {
        hvdc_video before = r->videos[slot];
        if (!load(r, slot, lost->video)) return false;
        r->videos[slot] = before;
        step = 0;
    }
    r->videos[slot].recovered = true;
    for_npu(r, slot, step * r->stream->trajectory.layers, hvdc_clock_ns());
    return true;
}

bool hvdc_running_gpu_lost(hvdc_running *r, const hvdc_failure *why) {
    char how[64] = "";
    bool stops = r->stream->options.stop_when_gpu_lost;
    r->gpu = false;
    /* With the worker's READY may have come that it ends: the NPU's thread, which has no work yet, has not noticed. */
    if (r->sharing.partner != NULL && !r->sharing.lost) hvdc_sharing_lose(&r->sharing);
    if (!hvdc_gpu_peer_end(&r->peer, false, how, sizeof how, r->failure)) return false;
    (void)snprintf(r->report->note, sizeof r->report->note, "the GPU's process is lost: %.300s (%s); %s", why->message,
                   how, stops ? "the stream stops, as it was asked to" : "the stream goes on with the NPU alone");
    r->report->gpu_lost = true;
    hvdc_trace_note(&r->trace, hvdc_clock_ns(), r->report->note);
    hvdc_running_tell(r, HVDC_EVENT_GPU_LOST, 0, 0, NULL, r->report->note);
    if (stops) return hvdc_fail(r->failure, HVDC_FAILURE_PEER, "%s", r->report->note);
    bool recovered = true;
    for (uint32_t i = 0; recovered && i < r->peer.todo_count; i++) recovered = recover(r, &r->peer.todo[i]);
    r->peer.todo_count = 0;
    pass_to_npu(r); /* only now, when all of them wait for it: one that was handed over wrongly is the last of todo */
    return recovered;
}

static void leave_to_npu(hvdc_running *r, const hvdc_npu_job *job) {
    r->peer.todo[r->peer.todo_count++] = (hvdc_assignment){
        .video = job->video, .slot = job->slot, .from = job->from, .to = hvdc_executions(&r->stream->trajectory)};
}

bool hvdc_running_partner_lost(hvdc_running *r, const hvdc_npu_job *job, const hvdc_failure *why) {
    hvdc_npu_job waiting[HVDC_SLOTS_MAX];
    const uint32_t count = hvdc_npu_lane_undo_shared(r->lane, waiting);
    r->peer.ending = why->kind != HVDC_FAILURE_PEER; /* then it said so itself, and ends */
    leave_to_npu(r, job);
    for (uint32_t i = 0; i < count; i++) leave_to_npu(r, &waiting[i]);
    const bool going = hvdc_running_gpu_lost(r, why);
    hvdc_npu_lane_go_on(r->lane);
    return going;
}

bool hvdc_running_computed(hvdc_running *r, const hvdc_npu_job *job) {
    const hvdc_stream *stream = r->stream;
    hvdc_video *video = &r->videos[job->slot];
    hvdc_span_of_time span = {
        .lane = HVDC_LANE_CPU, .activity = HVDC_DOES_KEEP, .video = video->video, .start_ns = hvdc_clock_ns()};
    if (stream->options.directory != NULL) {
        hvdc_result_key key = key_of(r, job->slot);
        const float *latent = hvdc_slot_latent(&r->slots[job->slot], stream->trajectory.steps);
        if (!hvdc_result_write(stream->options.directory, &key, video, latent, r->failure)) return false;
    }
    r->is_kept[job->slot] = true;
    span.end_ns = hvdc_clock_ns();
    hvdc_trace_span(&r->trace, &span);
    return true;
}

void hvdc_running_begun(hvdc_running *r, const hvdc_npu_job *job) { r->on_way[job->slot].npu_start_ns = job->begun_ns; }

void hvdc_running_finished(hvdc_running *r, const hvdc_npu_job *job) {
    hvdc_video *video = &r->videos[job->slot];
    uint64_t now_ns = hvdc_clock_ns();
    hvdc_running_npu_observed(r, job);
    video->finished_s = hvdc_running_s(r, now_ns);
    r->last_result_ns = now_ns;
    if (r->first_result_ns == 0) r->first_result_ns = now_ns;
    r->report->finished++;
    record(r, video);
    r->use[job->slot] = HVDC_SLOT_FREE;
    hvdc_running_tell(r, HVDC_EVENT_FINISHED, video->video, hvdc_executions(&r->stream->trajectory), video, NULL);
}

/* What the NPU's thread had said when nobody listened any more. */
static bool hear_last(hvdc_running *r) {
    hvdc_npu_news news;
    while (hvdc_npu_lane_news(r->lane, &news)) {
        if (news.kind == HVDC_NPU_SPAN) hvdc_running_span(r, &news.span);
        if (news.kind == HVDC_NPU_LATENT && !hvdc_running_computed(r, &news.job)) return false;
        if (news.kind == HVDC_NPU_DONE) hvdc_running_finished(r, &news.job);
    }
    return true;
}

static bool is_complete(const hvdc_running *r, uint32_t slot) {
    uint32_t step = 0;
    return r->use[slot] != HVDC_SLOT_FREE && !r->is_kept[slot] && hvdc_slot_boundary(&r->slots[slot], &step) &&
           step == r->stream->trajectory.steps;
}

bool hvdc_running_keep_complete(hvdc_running *r, bool hangs) {
    if (r->lane == NULL) return true;
    const uint32_t in_call = hvdc_npu_lane_video(r->lane);
    if (!hear_last(r)) return false;
    for (uint32_t slot = 0; slot < r->slot_count; slot++) {
        const hvdc_npu_job job = {.video = r->videos[slot].video, .slot = slot};
        if ((hangs && r->use[slot] == HVDC_SLOT_ON_NPU && job.video == in_call) || !is_complete(r, slot)) continue;
        if (r->use[slot] == HVDC_SLOT_ON_GPU) r->videos[slot].gpu_blocks = r->videos[slot].cut;
        if (!hvdc_running_computed(r, &job)) return false;
        if (r->stream->io.decode == NULL) hvdc_running_finished(r, &job);
    }
    return true;
}
