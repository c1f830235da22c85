/* The start of a stream: everything that can be refused is refused here, before any block is executed. */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hvdc/clock.h"
#include "stream.h"

#define START_TIMEOUT_S 600.0
#define EXCHANGE_VALUES_MAX (UINT64_C(1) << 40)

uint32_t hvdc_gpu_part(const hvdc_stream *stream) {
    switch (stream->options.mode) {
        case HVDC_MODE_NPU:
        case HVDC_MODE_TENSOR: return 0;
        case HVDC_MODE_HETERO: return stream->options.cut;
        case HVDC_MODE_GPU:
        case HVDC_MODE_DP: break;
    }
    return hvdc_executions(&stream->trajectory);
}

static bool shares_linears(const hvdc_stream *stream) {
    return stream->options.mode == HVDC_MODE_TENSOR && stream->options.gpu_share > 0;
}

bool hvdc_needs_worker(const hvdc_stream *stream) {
    return hvdc_has_policy(stream) || hvdc_gpu_part(stream) > 0 || shares_linears(stream);
}

static bool check_artifact(const hvdc_stream *stream, hvdc_failure *failure) {
    if (stream->weights == NULL) return true;
    const hvdc_artifact *artifact = hvdc_shared_weights_view(stream->weights)->artifact;
    if (hvdc_needs_worker(stream) && hvdc_artifact_calibration(artifact) == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT,
                         "mode %s needs activation scales for the GPU and the artifact has none: compile it with "
                         "--prompts or --calibration, or run it in mode npu",
                         hvdc_mode_name(stream->options.mode));
    hvdc_trajectory of = hvdc_trajectory_of(artifact);
    return memcmp(&of, &stream->trajectory, sizeof of) == 0 ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "the stream's sizes are not those of the artifact of its weights");
}

static bool check_options(const hvdc_stream *stream, hvdc_failure *failure) {
    const hvdc_stream_options *o = &stream->options;
    uint32_t executions = hvdc_executions(&stream->trajectory);
    if (o->mode > HVDC_MODE_TENSOR) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "there is no mode %d", (int)o->mode);
    if (o->policy.policy != HVDC_POLICY_STATIC && o->mode != HVDC_MODE_HETERO)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "policy %s chooses the cut of each video, and in mode %s none is cut: take mode hetero",
                         hvdc_policy_name(o->policy.policy), hvdc_mode_name(o->mode));
    if (o->mode == HVDC_MODE_HETERO && o->policy.policy == HVDC_POLICY_STATIC && o->cut > executions)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "a cut at %" PRIu32 " is outside the trajectory: it has %" PRIu32
                         " block executions, so that "
                         "cuts are 0 to %" PRIu32,
                         o->cut, executions, executions);
    if (o->mode == HVDC_MODE_TENSOR && !(o->gpu_share >= 0 && o->gpu_share <= 1))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a share of %g of the columns: it is 0 to 1", o->gpu_share);
    if (shares_linears(stream) && (stream->partner == NULL || stream->partner->exchange.values == 0 ||
                                   stream->partner->exchange.values > EXCHANGE_VALUES_MAX))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "mode %s needs an NPU engine with a partner, and an exchange of a size",
                         hvdc_mode_name(o->mode));
    if (o->videos == 0) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a stream of no videos: give it a prompt");
    if (o->slots > HVDC_SLOTS_MAX)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%" PRIu32 " videos in flight: at most %u are possible", o->slots,
                         HVDC_SLOTS_MAX);
    if (!(o->start_timeout_s >= 0) || !(o->silence_timeout_s >= 0) || !(o->npu_silence_timeout_s >= 0))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a timeout is 0 or more seconds");
    if (hvdc_needs_worker(stream) && (o->worker_argv == NULL || o->worker_argv[0] == NULL))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "mode %s needs a worker process, and there is no program for it",
                         hvdc_mode_name(o->mode));
    if (stream->npu == NULL || stream->io.load == NULL || stream->host.embed == NULL ||
        stream->host.project_text == NULL || stream->host.advance == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a stream needs the NPU's engine, all host functions and inputs");
    return true;
}

/* Without `resume`, a result that is there is somebody's work. */
static bool check_directory(const hvdc_stream *stream, hvdc_failure *failure) {
    const hvdc_stream_options *o = &stream->options;
    if (o->directory == NULL)
        return !o->resume || hvdc_fail(failure, HVDC_FAILURE_USAGE, "there is no directory to resume from");
    int directory = open(o->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0 || faccessat(directory, ".", W_OK | X_OK, 0) != 0) {
        int error = errno;
        if (directory >= 0) (void)close(directory);
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "results cannot be written to %s: %s", o->directory,
                         strerror(error));
    }
    bool free_of_results = true;
    for (uint32_t i = 0; !o->resume && free_of_results && i < o->videos; i++) {
        char name[HVDC_RESULT_NAME_BYTES];
        struct stat status;
        hvdc_result_name(i, name);
        if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0)
            free_of_results =
                hvdc_fail(failure, HVDC_FAILURE_FILE,
                          "%s/%s is there already: resume the stream, or take another directory", o->directory, name);
    }
    (void)close(directory);
    return free_of_results;
}

static uint32_t default_slots(enum hvdc_mode mode) {
    switch (mode) {
        case HVDC_MODE_NPU:
        case HVDC_MODE_TENSOR: return 1;
        case HVDC_MODE_DP: return 3; /* one for each engine, one that waits for the decoder */
        case HVDC_MODE_GPU:
        case HVDC_MODE_HETERO: break;
    }
    return 2;
}

static uint32_t slots_of(enum hvdc_mode mode, uint32_t slots) { return slots != 0 ? slots : default_slots(mode); }

uint64_t hvdc_stream_bytes(const hvdc_trajectory *trajectory, enum hvdc_mode mode, uint32_t slots,
                           uint64_t exchange_values) {
    return hvdc_slot_bytes(trajectory) * slots_of(mode, slots) +
           (exchange_values == 0 ? 0 : hvdc_exchange_bytes(exchange_values));
}

/* To an engine that needs notice of memory that it will work in. */
static bool announce(const hvdc_running *r, const hvdc_memory *memory) {
    hvdc_engine *npu = r->stream->npu;
    return npu->share == NULL || npu->share(npu, memory->data, memory->bytes, memory->fd, r->failure);
}

static bool make_slots(hvdc_running *r) {
    const hvdc_stream *stream = r->stream;
    uint64_t bytes = hvdc_slot_bytes(&stream->trajectory);
    uint32_t wanted = slots_of(stream->options.mode, stream->options.slots);
    r->memory_kind = hvdc_memory_choose(r->failure);
    if (r->memory_kind == NULL ||
        !hvdc_memory_fits("the videos in flight", bytes * wanted, stream->options.memory_limit_bytes, r->failure))
        return false;
    for (; r->slot_count < wanted; r->slot_count++) {
        hvdc_memory memory;
        char name[32];
        (void)snprintf(name, sizeof name, "hvdc:slot-%u", (unsigned)r->slot_count);
        if (!r->memory_kind->create(name, bytes, &memory, r->failure)) return false;
        r->slots[r->slot_count] = hvdc_slot_in(memory, &stream->trajectory);
        if (!hvdc_memory_fix_size(r->memory_kind, &memory, r->failure) || !announce(r, &memory)) {
            r->slot_count++;
            return false;
        }
    }
    r->report->slot_bytes = bytes * wanted;
    return true;
}

static bool make_exchange(hvdc_running *r) {
    const hvdc_stream *stream = r->stream;
    if (!shares_linears(stream)) return true;
    uint64_t values = stream->partner->exchange.values, bytes = hvdc_exchange_bytes(values);
    double silence_s = stream->options.silence_timeout_s;
    uint64_t limit = stream->options.memory_limit_bytes, all = r->report->slot_bytes + bytes;
    if (!hvdc_memory_fits("the videos in flight and what linears exchange", limit == 0 ? bytes : all, limit,
                          r->failure) ||
        !r->memory_kind->create("hvdc:exchange", bytes, &r->exchange, r->failure))
        return false;
    r->report->slot_bytes += bytes;
    r->sharing = (hvdc_sharing){.partner = stream->partner,
                                .channel = &r->peer.channel,
                                .timeout_s = silence_s > 0 ? silence_s : -1.0,
                                .layers = stream->trajectory.layers};
    hvdc_sharing_bind(&r->sharing, stream->options.gpu_share, hvdc_exchange_in(&r->exchange, values));
    return hvdc_memory_fix_size(r->memory_kind, &r->exchange, r->failure);
}

static bool start_worker(hvdc_running *r) {
    double given_s = r->stream->options.start_timeout_s;
    hvdc_failure why = {.kind = HVDC_FAILURE_NONE};
    r->gpu = true;
    if (hvdc_gpu_peer_start(&r->peer, r->stream, r->slots, r->slot_count, &r->exchange,
                            given_s > 0 ? given_s : START_TIMEOUT_S, &why))
        return true;
    return hvdc_fail(r->failure, why.kind, "the GPU's process could not start: %.400s", why.message);
}

bool hvdc_running_begin(hvdc_running *r) {
    const hvdc_stream *stream = r->stream;
    r->peer = HVDC_NO_GPU_PEER;
    r->exchange = HVDC_NO_MEMORY;
    r->stop_fd = stream->options.stop_fd > 0 ? stream->options.stop_fd : -1;
    r->origin_ns = hvdc_clock_ns();
    if (!hvdc_trajectory_check(&stream->trajectory, r->failure) || !check_options(stream, r->failure) ||
        !hvdc_stream_policy_begin(&stream->options.policy, hvdc_executions(&stream->trajectory), &r->policy,
                                  r->failure) ||
        !check_artifact(stream, r->failure) || !check_directory(stream, r->failure))
        return false;
    return make_slots(r) && make_exchange(r) &&
           hvdc_trace_open(&r->trace, stream->options.trace, r->origin_ns, r->failure) &&
           (!hvdc_needs_worker(stream) || start_worker(r)) &&
           hvdc_npu_lane_start(stream, r->slots, &r->sharing, &r->lane, r->failure);
}

static bool stop_lane(hvdc_running *r, hvdc_failure *why) {
    const double silence_s = r->stream->options.npu_silence_timeout_s;
    r->report->npu_hangs = !hvdc_npu_lane_stop(r->lane, silence_s);
    return !r->report->npu_hangs ||
           hvdc_fail(why, HVDC_FAILURE_DEVICE, HVDC_NPU_HANGS " while the stream was to end", silence_s);
}

/* All but what the NPU's thread works with, where that does not come back. */
bool hvdc_running_end(hvdc_running *r) {
    hvdc_failure why;
    bool stopped = true;
    if (r->sharing.partner != NULL) { /* whose socket the NPU's thread may be waiting at */
        if (r->abandoned) hvdc_gpu_peer_kill(&r->peer);
        stopped = stop_lane(r, &why);
    }
    bool ended = hvdc_gpu_peer_end(&r->peer, !r->abandoned, NULL, 0, stopped ? &why : NULL) && stopped;
    if (stopped) stopped = stop_lane(r, ended ? &why : NULL);
    const bool kept = hvdc_running_keep_complete(r, !stopped);
    if (ended && stopped && !kept) ended = hvdc_fail(&why, r->failure->kind, "%s", r->failure->message);
    ended = ended && stopped;
    if (!stopped) {
        (void)hvdc_trace_close(&r->trace, NULL);
        return hvdc_fail(r->failure, why.kind, "%s", why.message);
    }
    hvdc_npu_lane_free(r->lane);
    r->report->npu_engine_bytes = r->stream->npu == NULL ? 0 : r->stream->npu->memory_bytes(r->stream->npu);
    hvdc_sharing_unbind(&r->sharing);
    if (r->exchange.data != NULL) r->memory_kind->close(&r->exchange);
    for (uint32_t i = 0; i < r->slot_count; i++) {
        if (r->stream->npu->unshare != NULL) r->stream->npu->unshare(r->stream->npu, r->slots[i].memory.data);
        r->memory_kind->close(&r->slots[i].memory);
    }
    bool traced = hvdc_trace_close(&r->trace, ended ? &why : NULL);
    return (ended && traced) || hvdc_fail(r->failure, why.kind, "%s", why.message);
}
