#define _GNU_SOURCE

#include "npu_lane.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "hvdc/clock.h"

struct hvdc_npu_lane {
    const hvdc_stream *stream;
    hvdc_slot *slots;
    hvdc_sharing *sharing;
    hvdc_executor executor;
    pthread_t thread;
    int wake;
    bool joined;
    atomic_bool cancelled, ended, given_up;
    atomic_uint video;
    atomic_uint_fast64_t owes_since_ns; /* since when it has been in a call that will be news; 0: it is in none */
    pthread_mutex_t mutex;              /* what follows is the mutex's */
    pthread_cond_t changed;
    hvdc_npu_job waiting[HVDC_SLOTS_MAX];
    uint32_t waiting_count, running;
    bool ending, starved; /* starved: there was no memory for news */
    bool alone;           /* the worker was lost in a job: no other one begins before the shared ones are undone */
    hvdc_npu_news *news;  /* [first, end) of room */
    size_t news_first, news_end, news_room;
};

static void owe(hvdc_npu_lane *lane, bool owes) { atomic_store(&lane->owes_since_ns, owes ? hvdc_clock_ns() : 0); }

static void wake(hvdc_npu_lane *lane) {
    const uint64_t one = 1;
    ssize_t written = write(lane->wake, &one, sizeof one);
    (void)written; /* it only fails when it is readable anyway */
}

/* A thread that comes back too late finds that what it worked with belongs to nobody. */
static void stay_if_given_up(hvdc_npu_lane *lane) {
    while (atomic_load(&lane->given_up)) (void)pause();
}

/* News waits while the caller reads a file or writes one, so that there may be many. */
static bool post(hvdc_npu_lane *lane, const hvdc_npu_news *news, hvdc_failure *failure) {
    bool posted = true;
    stay_if_given_up(lane);
    owe(lane, true);
    (void)pthread_mutex_lock(&lane->mutex);
    if (lane->news_end == lane->news_room && lane->news_first > 0) {
        memmove(lane->news, lane->news + lane->news_first, (lane->news_end - lane->news_first) * sizeof *lane->news);
        lane->news_end -= lane->news_first;
        lane->news_first = 0;
    }
    if (lane->news_end == lane->news_room) {
        size_t room = lane->news_room == 0 ? 64 : 2 * lane->news_room;
        hvdc_npu_news *more = realloc(lane->news, room * sizeof *more);
        posted = more != NULL;
        if (posted) {
            lane->news = more;
            lane->news_room = room;
        }
    }
    if (posted) lane->news[lane->news_end++] = *news;
    lane->starved = lane->starved || !posted;
    if (news->kind >= HVDC_NPU_DONE) lane->running = 0;
    lane->alone = lane->alone || news->kind == HVDC_NPU_ALONE;
    (void)pthread_mutex_unlock(&lane->mutex);
    wake(lane);
    return posted || hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the NPU's news");
}

static bool post_span(void *context, const hvdc_span_of_time *span, hvdc_failure *failure) {
    hvdc_npu_news news = {.kind = HVDC_NPU_SPAN, .span = *span};
    return post(context, &news, failure);
}

static bool is_cancelled(void *context) {
    hvdc_npu_lane *lane = context;
    stay_if_given_up(lane);
    return atomic_load(&lane->cancelled);
}

static bool waited(hvdc_npu_lane *lane, const hvdc_npu_job *job, hvdc_failure *failure) {
    hvdc_span_of_time span = {.lane = HVDC_LANE_HANDOFF,
                              .activity = HVDC_DOES_WAIT,
                              .video = job->video,
                              .position = job->from,
                              .start_ns = job->ready_ns,
                              .end_ns = job->begun_ns};
    return job->ready_ns == 0 || post_span(lane, &span, failure);
}

struct decoding {
    hvdc_npu_lane *lane;
    const hvdc_npu_job *job;
};

static bool decoded_more(void *context, uint64_t done, uint64_t total) {
    const struct decoding *decoding = context;
    const hvdc_npu_news news = {.kind = HVDC_NPU_DECODING, .job = *decoding->job, .done = done, .total = total};
    return !is_cancelled(decoding->lane) && post(decoding->lane, &news, NULL);
}

static bool decode(hvdc_npu_lane *lane, const hvdc_npu_job *job, hvdc_failure *failure) {
    const hvdc_stream_io *io = &lane->stream->io;
    uint32_t steps = lane->stream->trajectory.steps;
    if (io->decode == NULL) return true;
    hvdc_span_of_time span = {.lane = HVDC_LANE_DECODE,
                              .activity = HVDC_DOES_DECODE,
                              .video = job->video,
                              .position = hvdc_executions(&lane->stream->trajectory),
                              .start_ns = hvdc_clock_ns()};
    struct decoding context = {.lane = lane, .job = job};
    const hvdc_decoding decoding = {.context = &context, .progress = decoded_more};
    if (!io->decode(io->context, job->video, hvdc_slot_latent(&lane->slots[job->slot], steps), &decoding, failure))
        return false;
    span.end_ns = hvdc_clock_ns();
    return post_span(lane, &span, failure);
}

static enum hvdc_executed perform(hvdc_npu_lane *lane, hvdc_npu_job *job, hvdc_failure *failure) {
    lane->sharing->video = job->video;
    job->begun_ns = hvdc_clock_ns();
    const hvdc_npu_news begun = {.kind = HVDC_NPU_BEGUN, .job = *job};
    if (!post(lane, &begun, failure) || !waited(lane, job, failure)) return HVDC_NOT_EXECUTED;
    enum hvdc_executed done = hvdc_execute(&lane->executor, &lane->slots[job->slot], job->video, job->from,
                                           hvdc_executions(&lane->stream->trajectory), failure);
    if (done != HVDC_EXECUTED) return done;
    job->computed_ns = hvdc_clock_ns();
    if (is_cancelled(lane)) return HVDC_CANCELLED;
    const hvdc_npu_news latent = {.kind = HVDC_NPU_LATENT, .job = *job};
    if (!job->kept && !post(lane, &latent, failure)) return HVDC_NOT_EXECUTED;
    if (decode(lane, job, failure)) return HVDC_EXECUTED;
    return is_cancelled(lane) ? HVDC_CANCELLED : HVDC_NOT_EXECUTED;
}

static bool next(hvdc_npu_lane *lane, hvdc_npu_job *job) {
    (void)pthread_mutex_lock(&lane->mutex);
    while (!lane->ending && (lane->alone || lane->waiting_count == 0)) {
        owe(lane, false);
        (void)pthread_cond_wait(&lane->changed, &lane->mutex);
    }
    bool go_on = !lane->ending;
    if (go_on) {
        *job = lane->waiting[0];
        lane->waiting_count--;
        memmove(lane->waiting, lane->waiting + 1, lane->waiting_count * sizeof *lane->waiting);
        lane->running = 1;
        atomic_store(&lane->video, job->video);
        owe(lane, true);
    }
    (void)pthread_mutex_unlock(&lane->mutex);
    return go_on;
}

static void *work(void *context) {
    hvdc_npu_lane *lane = context;
    hvdc_npu_job job;
    (void)prctl(PR_SET_NAME, "hvdc-npu"); /* as others see it */
    while (next(lane, &job)) {
        hvdc_npu_news news = {.kind = HVDC_NPU_DONE};
        enum hvdc_executed done = perform(lane, &job, &news.failure);
        news.job = job;
        stay_if_given_up(lane);
        if (done == HVDC_CANCELLED) break;
        if (done == HVDC_NOT_EXECUTED) news.kind = HVDC_NPU_FAILED;
        if (done == HVDC_NOT_EXECUTED && job.shared && lane->sharing->lost) {
            news.kind = HVDC_NPU_ALONE;
            hvdc_executor_forget_texts(&lane->executor); /* they were the worker's too */
        }
        if (!post(lane, &news, NULL) || news.kind == HVDC_NPU_FAILED) break;
    }
    atomic_store(&lane->ended, true);
    owe(lane, false);
    wake(lane);
    return NULL;
}

static bool start_thread(hvdc_npu_lane *lane, hvdc_failure *failure) {
    if (!hvdc_executor_init(&lane->executor, failure)) return false;
    lane->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (lane->wake < 0)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no descriptor for the NPU's thread: %s", strerror(errno));
    (void)pthread_mutex_init(&lane->mutex, NULL);
    (void)pthread_cond_init(&lane->changed, NULL);
    int error = pthread_create(&lane->thread, NULL, work, lane);
    return error == 0 || hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no thread for the NPU: %s", strerror(error));
}

static void release(hvdc_npu_lane *lane) {
    if (lane->wake >= 0) (void)close(lane->wake);
    hvdc_executor_free(&lane->executor);
    free(lane->news);
    free(lane);
}

bool hvdc_npu_lane_start(const hvdc_stream *stream, hvdc_slot *slots, hvdc_sharing *sharing, hvdc_npu_lane **made,
                         hvdc_failure *failure) {
    *made = NULL;
    hvdc_npu_lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the NPU's thread");
    lane->stream = stream;
    lane->slots = slots;
    lane->sharing = sharing;
    sharing->context = lane;
    sharing->span = post_span;
    sharing->owes_since_ns = &lane->owes_since_ns;
    lane->wake = -1;
    lane->executor = (hvdc_executor){.engine = stream->npu,
                                     .host = stream->host,
                                     .trajectory = &stream->trajectory,
                                     .lane = HVDC_LANE_NPU,
                                     .blocks_per_call = stream->options.blocks_per_call,
                                     .context = lane,
                                     .span = post_span,
                                     .cancelled = is_cancelled};
    if (!start_thread(lane, failure)) {
        release(lane);
        return false;
    }
    *made = lane;
    return true;
}

void hvdc_npu_lane_submit(hvdc_npu_lane *lane, hvdc_npu_job job) {
    (void)pthread_mutex_lock(&lane->mutex);
    if (lane->running == 0 && lane->waiting_count == 0) owe(lane, true); /* to begin, already */
    uint32_t at = lane->waiting_count++;                                 /* never more than there are slots */
    for (; at > 0 && lane->waiting[at - 1].video > job.video; at--) lane->waiting[at] = lane->waiting[at - 1];
    lane->waiting[at] = job;
    (void)pthread_cond_signal(&lane->changed);
    (void)pthread_mutex_unlock(&lane->mutex);
}

uint32_t hvdc_npu_lane_undo_shared(hvdc_npu_lane *lane, hvdc_npu_job undone[HVDC_SLOTS_MAX]) {
    uint32_t taken = 0, left = 0;
    (void)pthread_mutex_lock(&lane->mutex);
    for (uint32_t i = 0; i < lane->waiting_count; i++) {
        const hvdc_npu_job job = lane->waiting[i];
        if (job.shared)
            undone[taken++] = job;
        else
            lane->waiting[left++] = job;
    }
    lane->waiting_count = left;
    (void)pthread_mutex_unlock(&lane->mutex);
    return taken;
}

void hvdc_npu_lane_go_on(hvdc_npu_lane *lane) {
    (void)pthread_mutex_lock(&lane->mutex);
    lane->alone = false;
    (void)pthread_cond_signal(&lane->changed);
    (void)pthread_mutex_unlock(&lane->mutex);
}

uint32_t hvdc_npu_lane_load(hvdc_npu_lane *lane) {
    (void)pthread_mutex_lock(&lane->mutex);
    uint32_t load = lane->waiting_count + lane->running;
    (void)pthread_mutex_unlock(&lane->mutex);
    return load;
}

int hvdc_npu_lane_fd(const hvdc_npu_lane *lane) { return lane->wake; }

bool hvdc_npu_lane_news(hvdc_npu_lane *lane, hvdc_npu_news *news) {
    uint64_t count;
    ssize_t drained = read(lane->wake, &count, sizeof count);
    (void)drained; /* nothing to drain, nothing new since */
    (void)pthread_mutex_lock(&lane->mutex);
    bool there = lane->news_first < lane->news_end;
    if (there) *news = lane->news[lane->news_first++];
    if (!there && lane->starved) {
        lane->starved = false;
        there = true;
        *news = (hvdc_npu_news){.kind = HVDC_NPU_FAILED};
        (void)hvdc_fail(&news->failure, HVDC_FAILURE_MEMORY, "no memory for the NPU's news");
    }
    (void)pthread_mutex_unlock(&lane->mutex);
    return there;
}

double hvdc_npu_lane_patience_s(hvdc_npu_lane *lane, double silence_s) {
    const uint64_t since_ns = atomic_load(&lane->owes_since_ns), now_ns = hvdc_clock_ns();
    if (silence_s <= 0 || since_ns == 0) return INFINITY;
    return silence_s - (now_ns > since_ns ? (double)(now_ns - since_ns) * 1e-9 : 0.0);
}

uint32_t hvdc_npu_lane_video(hvdc_npu_lane *lane) { return atomic_load(&lane->video); }

/* False if a call of it takes longer than that. */
static bool wait_for_end(hvdc_npu_lane *lane, double silence_s) {
    while (silence_s > 0 && !atomic_load(&lane->ended)) {
        struct pollfd on = {.fd = lane->wake, .events = POLLIN};
        const double left_s = hvdc_npu_lane_patience_s(lane, silence_s);
        if (left_s <= 0) return false;
        uint64_t count;
        if (poll(&on, 1, left_s < 1.0 ? (int)ceil(left_s * 1e3) : 1000) > 0) {
            ssize_t drained = read(lane->wake, &count, sizeof count);
            (void)drained;
        }
    }
    return true;
}

bool hvdc_npu_lane_stop(hvdc_npu_lane *lane, double silence_s) {
    if (lane == NULL || lane->joined) return true;
    atomic_store(&lane->cancelled, true);
    (void)pthread_mutex_lock(&lane->mutex);
    lane->ending = true;
    (void)pthread_cond_signal(&lane->changed);
    (void)pthread_mutex_unlock(&lane->mutex);
    if (!wait_for_end(lane, silence_s)) {
        atomic_store(&lane->given_up, true);
        return false;
    }
    (void)pthread_join(lane->thread, NULL);
    lane->joined = true;
    return true;
}

void hvdc_npu_lane_free(hvdc_npu_lane *lane) {
    if (lane == NULL) return;
    (void)pthread_mutex_destroy(&lane->mutex);
    (void)pthread_cond_destroy(&lane->changed);
    release(lane);
}
