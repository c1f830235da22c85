/* The loop of a stream: it waits for the worker, for the NPU's thread and for being asked to stop. */
#define _GNU_SOURCE

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "hvdc/clock.h"
#include "stream.h"

static const char *const MODES[] = {"npu", "gpu", "hetero", "dp", "hetero-tensor"};

const char *hvdc_mode_name(enum hvdc_mode mode) { return mode <= HVDC_MODE_TENSOR ? MODES[mode] : "unknown"; }

bool hvdc_mode_of_name(const char *name, enum hvdc_mode *mode) {
    for (uint32_t i = 0; i < sizeof MODES / sizeof *MODES; i++)
        if (strcmp(name, MODES[i]) == 0) {
            *mode = (enum hvdc_mode)i;
            return true;
        }
    return false;
}

int hvdc_stop_signals(hvdc_failure *failure) {
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0 || pthread_sigmask(SIG_BLOCK, &set, NULL) != 0) {
        (void)hvdc_fail(failure, HVDC_FAILURE_FILE, "SIGTERM and SIGINT cannot be waited for: %s", strerror(errno));
        if (fd >= 0) (void)close(fd);
        return -1;
    }
    return fd;
}

double hvdc_running_s(const hvdc_running *r, uint64_t at_ns) { return ((double)at_ns - (double)r->origin_ns) * 1e-9; }

void hvdc_running_tell(hvdc_running *r, enum hvdc_event event, uint32_t video, uint32_t position,
                       const hvdc_video *record, const char *text) {
    const hvdc_stream_io *io = &r->stream->io;
    hvdc_progress progress = {.event = event,
                              .video = video,
                              .position = position,
                              .record = record,
                              .text = text,
                              .at_s = hvdc_running_s(r, hvdc_clock_ns())};
    if (io->progress != NULL) io->progress(io->context, &progress);
}

static hvdc_video *in_flight(hvdc_running *r, uint32_t video) {
    for (uint32_t slot = 0; slot < r->slot_count; slot++)
        if (r->use[slot] != HVDC_SLOT_FREE && r->videos[slot].video == video) return &r->videos[slot];
    return NULL;
}

void hvdc_running_span(hvdc_running *r, const hvdc_span_of_time *span) {
    double seconds = (double)(span->end_ns - span->start_ns) * 1e-9;
    hvdc_video *video = in_flight(r, span->video);
    hvdc_trace_span(&r->trace, span);
    if (video == NULL) return;
    switch (span->lane) {
        case HVDC_LANE_GPU: video->gpu_s += seconds; break;
        case HVDC_LANE_NPU: video->npu_s += seconds; break;
        case HVDC_LANE_CPU: video->cpu_s += seconds; break;
        case HVDC_LANE_HANDOFF: video->waiting_s += seconds; break;
        case HVDC_LANE_DECODE: video->decode_s += seconds; break;
        default: break;
    }
    if (span->activity == HVDC_DOES_BLOCKS)
        hvdc_running_tell(r, HVDC_EVENT_BLOCKS, span->video, span->position + span->count, NULL, NULL);
}

/* Of the first of the worker's todo: gpu_peer.c has compared. */
static void gpu_span(hvdc_running *r, const hvdc_span_of_time *span) {
    hvdc_on_way *way = &r->on_way[r->peer.todo[0].slot];
    if (way->gpu_start_ns == 0) way->gpu_start_ns = span->start_ns;
    way->gpu_end_ns = span->end_ns;
    hvdc_running_span(r, span);
}

static bool hear_gpu(hvdc_running *r) {
    for (;;) {
        hvdc_gpu_news news;
        hvdc_failure why = {.kind = HVDC_FAILURE_NONE};
        switch (hvdc_gpu_peer_news(&r->peer, &news, &why)) {
            case HVDC_GPU_SILENT: return true;
            case HVDC_GPU_READY: r->ready = true; break;
            case HVDC_GPU_SPAN: gpu_span(r, &news.span); break;
            case HVDC_GPU_HANDOFF:
                if (!hvdc_running_handed_over(r, &news.handoff)) return false;
                if (!r->gpu) return true;
                break;
            case HVDC_GPU_LOST:
                if (r->ready) return hvdc_running_gpu_lost(r, &why);
                return hvdc_fail(r->failure, why.kind, "the GPU's process could not start: %.400s", why.message);
        }
    }
}

static void decoding(hvdc_running *r, const hvdc_npu_news *news) {
    const hvdc_stream_io *io = &r->stream->io;
    const hvdc_progress progress = {.event = HVDC_EVENT_DECODING,
                                    .video = news->job.video,
                                    .position = hvdc_executions(&r->stream->trajectory),
                                    .done = news->done,
                                    .total = news->total,
                                    .at_s = hvdc_running_s(r, hvdc_clock_ns())};
    if (io->progress != NULL) io->progress(io->context, &progress);
}

static bool hear_npu(hvdc_running *r) {
    hvdc_npu_news news;
    while (hvdc_npu_lane_news(r->lane, &news)) {
        if (news.kind == HVDC_NPU_BEGUN) hvdc_running_begun(r, &news.job);
        if (news.kind == HVDC_NPU_SPAN) hvdc_running_span(r, &news.span);
        if (news.kind == HVDC_NPU_LATENT && !hvdc_running_computed(r, &news.job)) return false;
        if (news.kind == HVDC_NPU_DECODING) decoding(r, &news);
        if (news.kind == HVDC_NPU_DONE) hvdc_running_finished(r, &news.job);
        if (news.kind == HVDC_NPU_ALONE && !hvdc_running_partner_lost(r, &news.job, &news.failure)) return false;
        if (news.kind == HVDC_NPU_FAILED) return hvdc_fail(r->failure, news.failure.kind, "%s", news.failure.message);
    }
    return true;
}

/* Asked once, or twice. */
static void hear_stop(hvdc_running *r) {
    struct signalfd_siginfo asked;
    ssize_t got = read(r->stop_fd, &asked, sizeof asked); /* one signal; any other descriptor: whatever is there */
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) r->stop_fd = -1; /* it can ask only once */
    r->abandoned = r->stopping || r->stream->options.on_stop == HVDC_STOP_ABANDON;
    r->stopping = true;
    hvdc_running_tell(r, HVDC_EVENT_STOPPING, 0, 0, NULL,
                      r->abandoned ? "asked to stop: what is not finished is dropped"
                                   : "asked to stop: videos that have begun are finished");
}

/* Seconds until the worker has been silent for too long; infinite if it may be. */
static double patience_s(const hvdc_running *r, double timeout_s) {
    bool owes = r->gpu && timeout_s > 0 && (!r->ready || r->peer.todo_count > 0);
    return owes ? timeout_s - (double)(hvdc_clock_ns() - r->peer.heard_ns) * 1e-9 : INFINITY;
}

static bool out_of_patience(hvdc_running *r, double timeout_s) {
    hvdc_failure why;
    if (!hear_gpu(r)) return false; /* what came while this thread was busy counts */
    if (!r->gpu || patience_s(r, timeout_s) > 0) return true;
    (void)hvdc_fail(&why, HVDC_FAILURE_PEER, "it has been silent for %.1f s", timeout_s);
    if (r->ready) return hvdc_running_gpu_lost(r, &why);
    return hvdc_fail(r->failure, HVDC_FAILURE_PEER, "the GPU's process could not start: %s", why.message);
}

static bool npu_hangs(hvdc_running *r) {
    return hvdc_fail(r->failure, HVDC_FAILURE_DEVICE, HVDC_NPU_HANGS " in video %u; finished videos are kept",
                     r->stream->options.npu_silence_timeout_s, (unsigned)hvdc_npu_lane_video(r->lane));
}

static int milliseconds(double seconds) {
    return isinf(seconds) ? -1 : seconds <= 0 ? 0 : seconds > 1e6 ? 1000000000 : (int)ceil(seconds * 1e3);
}

/* Waits for news and takes it. */
static bool turn(hvdc_running *r, double timeout_s) {
    bool listens = r->gpu && !(r->sharing.partner != NULL && r->ready); /* else the NPU's thread does */
    struct pollfd on[3] = {{.fd = listens ? r->peer.channel.socket : -1, .events = POLLIN},
                           {.fd = hvdc_npu_lane_fd(r->lane), .events = POLLIN},
                           {.fd = r->stop_fd, .events = POLLIN}};
    const double npu_s = r->stream->options.npu_silence_timeout_s;
    const double patient_s = fmin(patience_s(r, timeout_s), hvdc_npu_lane_patience_s(r->lane, npu_s));
    int ready = poll(on, 3, milliseconds(fmin(patient_s, hvdc_running_hold_s(r))));
    if (ready < 0 && errno != EINTR)
        return hvdc_fail(r->failure, HVDC_FAILURE_PEER, "waiting for the engines failed: %s", strerror(errno));
    if (ready < 0) return true;
    if (on[2].revents != 0) hear_stop(r);
    if (r->abandoned) return true;
    if (on[1].revents != 0 && !hear_npu(r)) return false;
    if (on[0].revents != 0 && !hear_gpu(r)) return false;
    if (hvdc_npu_lane_patience_s(r->lane, npu_s) <= 0) return npu_hangs(r);
    return patience_s(r, timeout_s) > 0 || out_of_patience(r, timeout_s);
}

static bool run(hvdc_running *r) {
    const hvdc_stream_options *o = &r->stream->options;
    double start_s = o->start_timeout_s > 0 ? o->start_timeout_s : 600.0;
    while (r->gpu && !r->ready && !r->stopping)
        if (!turn(r, start_s)) return false;
    if (r->stopping) {
        r->abandoned = true; /* nothing has begun, and a worker that is not ready does not listen */
        return true;
    }
    r->report->gpu_engine_bytes = r->peer.engine_bytes;
    r->report->gpu_weights = r->peer.weights;
    r->started_ns = hvdc_clock_ns();
    hvdc_running_tell(r, HVDC_EVENT_STARTED, 0, 0, NULL, NULL);
    while (!r->abandoned && hvdc_running_is_busy(r))
        if (!hvdc_running_fill(r) || (hvdc_running_is_busy(r) && !turn(r, o->silence_timeout_s))) return false;
    return true;
}

bool hvdc_stream_run(const hvdc_stream *stream, hvdc_stream_report *report, hvdc_failure *failure) {
    hvdc_stream_report empty = {.videos = report->videos};
    hvdc_failure unread;
    hvdc_running *r = calloc(1, sizeof *r);
    *report = empty;
    if (r == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for a stream's state");
    *r = (hvdc_running){.stream = stream, .report = report, .failure = failure != NULL ? failure : &unread};
    bool ran = hvdc_running_begin(r) && run(r);
    if (!ran) r->abandoned = true;
    hvdc_failure first = *r->failure;
    bool ended = hvdc_running_end(r);
    if (!ran) *r->failure = first; /* the first failure is the reason of the others */
    report->stopped = r->stopping && report->finished + report->skipped < stream->options.videos;
    if (r->last_result_ns != 0) report->seconds = (double)(r->last_result_ns - r->first_block_ns) * 1e-9;
    if (report->finished > 1)
        report->period_s = (double)(r->last_result_ns - r->first_result_ns) * 1e-9 / (report->finished - 1);
    if (!report->npu_hangs) free(r); /* else its thread may still come back to it */
    return ran && ended;
}
