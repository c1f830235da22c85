#define _POSIX_C_SOURCE 200809L

#include "timing.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engines.h"
#include "hvdc/channel.h"
#include "hvdc/child.h"
#include "hvdc/clock.h"
#include "processors.h"
#include "report.h"
#include "roles.h"
#include "watched_engine.h"

#define EXPERTS HVDC_TIMED_EXPERTS
#define ENOUGH 2u /* blocks of each expert */
#define REMIND_S 10.0
#define NANOSECOND 1e-9

static void note(hvdc_timed *timed, const hvdc_timed_block *block) {
    timed->seconds[block->expert % EXPERTS] += block->seconds;
    timed->count[block->expert % EXPERTS]++;
}

static bool is_enough(const hvdc_timed *timed, const hvdc_timing *timing) {
    for (uint32_t expert = 0; expert < EXPERTS; expert++)
        if (timing->exists[expert] && timed->count[expert] < ENOUGH) return false;
    return true;
}

/* Over a trajectory, whose steps are not shared evenly by the experts. */
static double mean_block_s(const hvdc_timed *timed, const hvdc_trajectory *trajectory) {
    double sum = 0.0;
    for (uint32_t step = 0; step < trajectory->steps; step++) {
        uint32_t expert = trajectory->experts[step] % EXPERTS;
        sum += timed->seconds[expert] / (double)timed->count[expert];
    }
    return sum / (double)trajectory->steps;
}

static double since_s(uint64_t start_ns) { return (double)(hvdc_clock_ns() - start_ns) * NANOSECOND; }

/* The timer's process, as its owner hears it. */
typedef struct hvdc_heard {
    hvdc_channel channel;
    hvdc_timed timed;
    const hvdc_options *options;
    bool begun;                    /* it has executed a block */
    uint64_t last_ns, reminded_ns; /* when it said something, and when the user was told that it does not */
    int stop_fd;
    bool stopped;
} hvdc_heard;

/* Takes all that the timer has said; waits for the first of it at most `timeout_s`. */
static bool take_messages(hvdc_heard *heard, double timeout_s, hvdc_failure *failure) {
    hvdc_message message;
    hvdc_timed_block block;
    enum hvdc_received got;
    while ((got = hvdc_channel_receive(&heard->channel, timeout_s, &message, failure)) == HVDC_RECEIVED_MESSAGE) {
        if (message.fd >= 0) (void)close(message.fd);
        if (message.kind == HVDC_TIMER_SAY_NO) return hvdc_channel_refusal(&message, failure);
        if (message.kind != HVDC_TIMER_SAY_BLOCK || message.bytes != sizeof block)
            return hvdc_fail(failure, HVDC_FAILURE_PEER, "the process that times the GPU sent message %u of %u bytes",
                             (unsigned)message.kind, (unsigned)message.bytes);
        memcpy(&block, message.payload, sizeof block);
        note(&heard->timed, &block);
        heard->last_ns = hvdc_clock_ns();
        timeout_s = 0;
    }
    return got == HVDC_RECEIVED_NOTHING;
}

static bool go_on(hvdc_heard *heard, hvdc_failure *failure) {
    struct pollfd stop = {.fd = heard->stop_fd, .events = POLLIN};
    heard->stopped = heard->stop_fd >= 0 && poll(&stop, 1, 0) > 0;
    if (heard->stopped)
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "stopped while the engines were timed: nothing was made");
    /* Before its first block it opens a device and compiles kernels. */
    const double limit_s = heard->options->gpu_silence_s * (heard->begun ? 1.0 : 2.0);
    if (since_s(heard->last_ns) > limit_s)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                         "the GPU has executed no block within %.1f s while it was timed; if it is only slow, give "
                         "--gpu-silence-s, or a cut or rates",
                         limit_s);
    if (since_s(heard->last_ns) > REMIND_S && since_s(heard->reminded_ns) > REMIND_S) {
        heard->reminded_ns = hvdc_clock_ns();
        hvdc_say(heard->options, "note", "%s for %.0f s; it is given up after %.0f s",
                 heard->begun ? "the GPU has executed no block" : "the GPU opens its device and compiles kernels",
                 since_s(heard->last_ns), limit_s);
    }
    return true;
}

static bool time_beside(hvdc_heard *heard, hvdc_timing *npu, hvdc_timed *npu_timed, hvdc_failure *failure) {
    while (heard->timed.count[0] + heard->timed.count[1] == 0) /* until it has begun */
        if (!go_on(heard, failure) || !take_messages(heard, 0.2, failure)) return false;
    heard->begun = true;
    heard->timed = (hvdc_timed){.count = {0, 0}}; /* these were executed alone */
    while (!is_enough(npu_timed, npu) || !is_enough(&heard->timed, npu)) {
        hvdc_timed_block block;
        if (!go_on(heard, failure) || !hvdc_timing_block(npu, &block, failure)) return false;
        note(npu_timed, &block);
        if (!take_messages(heard, 0, failure)) return false;
    }
    return true;
}

static bool time_engines(const hvdc_options *options, const hvdc_trajectory *trajectory, hvdc_timing *timing,
                         const char *gpu_cpus, int stop_fd, hvdc_rates *rates, bool *stopped, hvdc_failure *failure) {
    char threads[16], *argv[HVDC_ARGUMENTS_MAX];
    hvdc_timed npu_timed = {.count = {0, 0}};
    hvdc_child child;
    hvdc_options_for(HVDC_ROLE_TIMER, options, gpu_cpus, threads, argv);
    bool good = hvdc_child_start(argv, HVDC_WORKER_FD, 2.0 * options->gpu_silence_s, &child, failure);
    if (good) {
        hvdc_heard heard = {.channel = hvdc_channel_on(child.socket),
                            .options = options,
                            .last_ns = hvdc_clock_ns(),
                            .stop_fd = stop_fd};
        good = time_beside(&heard, timing, &npu_timed, failure);
        *stopped = heard.stopped;
        if (good) {
            rates->gpu_block_s = mean_block_s(&heard.timed, trajectory);
            rates->npu_block_s = mean_block_s(&npu_timed, trajectory);
        }
        if (!hvdc_child_end(&child, NULL, 0, good ? failure : NULL)) good = false;
    }
    return good;
}

bool hvdc_time_engines(const hvdc_options *options, const hvdc_trajectory *trajectory, hvdc_engine *npu,
                       const char *gpu_cpus, int stop_fd, hvdc_rates *rates, hvdc_timed_end *end,
                       hvdc_failure *failure) {
    hvdc_engine *watched = NULL;
    hvdc_timing *timing = calloc(1, sizeof *timing);
    *end = (hvdc_timed_end){.stopped = false};
    bool good = timing != NULL || hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory to time a block");
    good = good && hvdc_watched_engine_open(npu, options->npu_silence_s, &watched, failure);
    if (good) {
        good = hvdc_timing_begin(timing, watched, trajectory, failure) &&
               time_engines(options, trajectory, timing, gpu_cpus, stop_fd, rates, &end->stopped, failure);
        end->npu_hangs = hvdc_watched_engine_hangs(watched);
        if (end->npu_hangs) return false; /* the call may use all of it */
        hvdc_timing_end(timing);
        hvdc_engine_close(watched);
    }
    free(timing);
    return good;
}

/* An owner whose own block takes long reads nothing meanwhile: what finds no room is not said, and work goes on. */
static bool has_room(int socket) {
    struct pollfd out = {.fd = socket, .events = POLLOUT};
    return poll(&out, 1, 0) > 0;
}

static bool time_for_owner(const hvdc_options *options, hvdc_channel *channel, hvdc_failure *failure) {
    hvdc_artifact *artifact = NULL;
    hvdc_engine *engine = NULL;
    hvdc_timing timing = {.hidden = HVDC_NO_HIDDEN};
    if (!hvdc_processors_use(options->gpu_cpus, failure) || !hvdc_open_artifact(options->artifact, &artifact, failure))
        return false;
    const hvdc_weights weights = {.artifact = artifact};
    const hvdc_trajectory trajectory = hvdc_trajectory_of(artifact);
    bool good =
        hvdc_open_gpu(&weights, options, &engine, failure) && hvdc_timing_begin(&timing, engine, &trajectory, failure);
    while (good) { /* until it is killed */
        hvdc_timed_block block;
        good = hvdc_timing_block(&timing, &block, failure) &&
               (!has_room(channel->socket) ||
                hvdc_channel_send(channel, HVDC_TIMER_SAY_BLOCK, &block, sizeof block, -1, failure));
    }
    if (engine != NULL) hvdc_timing_end(&timing);
    hvdc_engine_close(engine);
    hvdc_artifact_close(artifact);
    return good;
}

enum hvdc_exit hvdc_be_timer(const hvdc_options *options) {
    hvdc_channel channel = hvdc_channel_on(HVDC_WORKER_FD);
    hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
    (void)time_for_owner(options, &channel, &failure);
    (void)hvdc_channel_refuse(&channel, HVDC_TIMER_SAY_NO, &failure);
    return HVDC_EXIT_FAILURE;
}
