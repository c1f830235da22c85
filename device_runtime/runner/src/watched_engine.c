#define _GNU_SOURCE

#include "watched_engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "hvdc/clock.h"

enum what { NOTHING, SET_TEXT, RUN, SHARE, UNSHARE, END };

typedef struct watched {
    hvdc_engine face; /* first, so that an hvdc_engine of ours is a watched */
    hvdc_engine *engine;
    double limit_s;
    pthread_t thread;
    pthread_mutex_t
        mutex; /* what follows is the mutex's, but for what a call is given and gives, which is the call's */
    pthread_cond_t changed;
    enum what asked;
    bool hangs;
    uint32_t numbers[3];
    const float *text;
    void *data;
    uint64_t bytes;
    int fd;
    bool good;
    hvdc_failure why;
} watched;

static bool call(watched *w, enum what what) {
    hvdc_engine *e = w->engine;
    switch (what) {
        case SET_TEXT: return e->set_text(e, w->numbers[0], w->text, &w->why);
        case RUN: return e->run(e, w->numbers[0], w->numbers[1], w->numbers[2], w->data, &w->why);
        case SHARE: return e->share(e, w->data, w->bytes, w->fd, &w->why);
        case UNSHARE: e->unshare(e, w->data); return true;
        case NOTHING:
        case END: break;
    }
    return true;
}

static void *work(void *context) {
    watched *w = context;
    (void)prctl(PR_SET_NAME, "hvdc-npu"); /* as others see it */
    (void)pthread_mutex_lock(&w->mutex);
    while (w->asked != END) {
        while (w->asked == NOTHING) (void)pthread_cond_wait(&w->changed, &w->mutex);
        const enum what what = w->asked;
        if (what == END) break;
        (void)pthread_mutex_unlock(&w->mutex);
        const bool good = call(w, what);
        (void)pthread_mutex_lock(&w->mutex);
        w->good = good;
        w->asked = NOTHING;
        (void)pthread_cond_broadcast(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->mutex);
    return NULL;
}

static struct timespec in_s(double seconds) {
    const uint64_t at_ns = hvdc_clock_ns() + (uint64_t)((seconds < 1e6 ? seconds : 1e6) * 1e9);
    return (struct timespec){.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
}

/* What the call takes is filled in. */
static bool ask(watched *w, enum what what, hvdc_failure *failure) {
    const struct timespec until = in_s(w->limit_s);
    int error = 0;
    (void)pthread_mutex_lock(&w->mutex);
    w->asked = w->hangs ? w->asked : what;
    (void)pthread_cond_broadcast(&w->changed);
    while (!w->hangs && w->asked != NOTHING && error != ETIMEDOUT)
        error = w->limit_s > 0 ? pthread_cond_timedwait(&w->changed, &w->mutex, &until)
                               : pthread_cond_wait(&w->changed, &w->mutex);
    w->hangs = w->hangs || w->asked != NOTHING;
    const bool hangs = w->hangs, good = !hangs && w->good;
    (void)pthread_mutex_unlock(&w->mutex);
    if (hangs) return hvdc_fail(failure, HVDC_FAILURE_DEVICE, HVDC_WATCHED_HANGS, w->limit_s);
    if (!good && failure != NULL) *failure = w->why;
    return good;
}

static bool set_text(hvdc_engine *engine, uint32_t expert, const float *text, hvdc_failure *failure) {
    watched *w = (watched *)(void *)engine;
    if (!hvdc_watched_engine_hangs(engine)) {
        w->numbers[0] = expert;
        w->text = text;
    }
    return ask(w, SET_TEXT, failure);
}

static bool run(hvdc_engine *engine, uint32_t step, uint32_t first, uint32_t count, float *hidden,
                hvdc_failure *failure) {
    watched *w = (watched *)(void *)engine;
    if (!hvdc_watched_engine_hangs(engine)) {
        w->numbers[0] = step, w->numbers[1] = first, w->numbers[2] = count;
        w->data = hidden;
    }
    return ask(w, RUN, failure);
}

static bool share(hvdc_engine *engine, void *data, uint64_t bytes, int fd, hvdc_failure *failure) {
    watched *w = (watched *)(void *)engine;
    if (!hvdc_watched_engine_hangs(engine)) {
        w->data = data;
        w->bytes = bytes;
        w->fd = fd;
    }
    return ask(w, SHARE, failure);
}

static void unshare_watched(hvdc_engine *engine, void *data) {
    watched *w = (watched *)(void *)engine;
    if (!hvdc_watched_engine_hangs(engine)) w->data = data;
    (void)ask(w, UNSHARE, NULL);
}

static uint64_t memory_bytes(const hvdc_engine *engine) {
    const watched *w = (const watched *)(const void *)engine;
    return w->engine->memory_bytes(w->engine);
}

bool hvdc_watched_engine_hangs(const hvdc_engine *engine) { return ((const watched *)(const void *)engine)->hangs; }

static void release(watched *w) {
    (void)pthread_mutex_destroy(&w->mutex);
    (void)pthread_cond_destroy(&w->changed);
    free(w);
}

static void close_watched(hvdc_engine *engine) {
    watched *w = (watched *)(void *)engine;
    if (w->hangs) return;
    (void)pthread_mutex_lock(&w->mutex);
    w->asked = END;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->mutex);
    (void)pthread_join(w->thread, NULL);
    release(w);
}

bool hvdc_watched_engine_open(hvdc_engine *engine, double limit_s, hvdc_engine **made, hvdc_failure *failure) {
    pthread_condattr_t monotonic;
    watched *w = calloc(1, sizeof *w);
    *made = NULL;
    if (w == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for the NPU's thread");
    w->face = (hvdc_engine){.name = engine->name,
                            .set_text = set_text,
                            .run = run,
                            .memory_bytes = memory_bytes,
                            .share = engine->share == NULL ? NULL : share,
                            .unshare = engine->unshare == NULL ? NULL : unshare_watched,
                            .close = close_watched};
    w->engine = engine;
    w->limit_s = limit_s;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&w->mutex, NULL);
    (void)pthread_cond_init(&w->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    const int error = pthread_create(&w->thread, NULL, work, w);
    if (error == 0) {
        *made = &w->face;
        return true;
    }
    release(w);
    return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no thread for the NPU: %s", strerror(error));
}
