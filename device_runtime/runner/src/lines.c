#define _GNU_SOURCE

#include "lines.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hvdc/clock.h"

struct hvdc_lines {
    int fd;
    void (*closed)(void);
    pthread_t thread;
    pthread_mutex_t mutex; /* what follows is the mutex's */
    pthread_cond_t changed;
    char *text; /* [first, end) of room waits */
    size_t first, end, room;
    bool ending;
    int error;         /* of write: nothing is written any more */
    uint64_t taken_ns; /* when something was written last */
};

/* Whole lines, at most `most` bytes; a longer line in pieces. */
static size_t piece(const char *text, size_t bytes, size_t most) {
    if (bytes <= most) return bytes;
    const char *end = memrchr(text, '\n', most);
    return end == NULL ? most : (size_t)(end - text) + 1u;
}

static int write_whole(int fd, const char *text, size_t bytes) {
    while (bytes > 0) {
        const ssize_t done = write(fd, text, bytes);
        if (done < 0 && errno != EINTR && errno != EAGAIN) return errno;
        if (done < 0 && errno == EAGAIN) { /* somebody else made it so */
            const struct timespec pause = {.tv_nsec = 1000000};
            (void)nanosleep(&pause, NULL);
        }
        if (done < 0) continue;
        text += done;
        bytes -= (size_t)done;
    }
    return 0;
}

static void *serve(void *argument) {
    hvdc_lines *lines = argument;
    char own[PIPE_BUF];
    (void)pthread_mutex_lock(&lines->mutex);
    for (;;) {
        while (lines->first == lines->end && !lines->ending) (void)pthread_cond_wait(&lines->changed, &lines->mutex);
        if (lines->first == lines->end) break;
        const size_t bytes = piece(lines->text + lines->first, lines->end - lines->first, sizeof own);
        memcpy(own, lines->text + lines->first, bytes);
        (void)pthread_mutex_unlock(&lines->mutex);
        const int error = write_whole(lines->fd, own, bytes);
        if (error == EPIPE && lines->closed != NULL) lines->closed();
        (void)pthread_mutex_lock(&lines->mutex);
        lines->first += bytes;
        lines->taken_ns = hvdc_clock_ns();
        lines->error = error;
        if (error != 0) lines->first = lines->end;
        (void)pthread_cond_broadcast(&lines->changed);
        if (error != 0) break;
    }
    (void)pthread_mutex_unlock(&lines->mutex);
    return NULL;
}

/* Signals stay with the other threads. */
static int start(hvdc_lines *lines) {
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&lines->thread, NULL, serve, lines);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

hvdc_lines *hvdc_lines_open(int fd, void (*closed)(void)) {
    pthread_condattr_t monotonic;
    hvdc_lines *lines = calloc(1, sizeof *lines);
    if (lines == NULL) return NULL;
    lines->fd = fd;
    lines->closed = closed;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&lines->mutex, NULL);
    (void)pthread_cond_init(&lines->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    if (start(lines) == 0) return lines;
    (void)pthread_mutex_destroy(&lines->mutex);
    (void)pthread_cond_destroy(&lines->changed);
    free(lines);
    return NULL;
}

static bool make_room(hvdc_lines *lines, size_t bytes) {
    const size_t waiting = lines->end - lines->first;
    if (lines->room - lines->end >= bytes) return true;
    if (lines->first > 0) memmove(lines->text, lines->text + lines->first, waiting);
    lines->first = 0;
    lines->end = waiting;
    if (lines->room - waiting >= bytes) return true;
    size_t room = lines->room == 0 ? (size_t)2 * PIPE_BUF : lines->room;
    while (room - waiting < bytes) room *= 2u;
    char *more = realloc(lines->text, room);
    if (more == NULL) return false;
    lines->text = more;
    lines->room = room;
    return true;
}

bool hvdc_lines_put(hvdc_lines *lines, const char *text, size_t bytes, size_t room_bytes) {
    (void)pthread_mutex_lock(&lines->mutex);
    const size_t waiting = lines->end - lines->first;
    const bool fits = lines->error == 0 && bytes <= room_bytes && waiting <= room_bytes - bytes;
    const bool left = fits && make_room(lines, bytes);
    if (left) {
        if (waiting == 0) lines->taken_ns = hvdc_clock_ns(); /* patience begins with the first that waits */
        memcpy(lines->text + lines->end, text, bytes);
        lines->end += bytes;
        (void)pthread_cond_broadcast(&lines->changed);
    }
    (void)pthread_mutex_unlock(&lines->mutex);
    return left;
}

static struct timespec at_ns(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

int hvdc_lines_close(hvdc_lines *lines, double patience_s) {
    if (lines == NULL) return 0;
    const uint64_t patience_ns = (uint64_t)((patience_s < 1e6 ? patience_s : 1e6) * 1e9);
    (void)pthread_mutex_lock(&lines->mutex);
    while (lines->first != lines->end) {
        const uint64_t until_ns = lines->taken_ns + patience_ns;
        const struct timespec until = at_ns(until_ns);
        if (hvdc_clock_ns() >= until_ns) break;
        (void)pthread_cond_timedwait(&lines->changed, &lines->mutex, &until);
    }
    const bool written = lines->first == lines->end;
    lines->ending = true;
    (void)pthread_cond_broadcast(&lines->changed);
    (void)pthread_mutex_unlock(&lines->mutex);
    if (!written) {
        (void)pthread_detach(lines->thread);
        return ETIMEDOUT;
    }
    (void)pthread_join(lines->thread, NULL);
    const int error = lines->error;
    (void)pthread_mutex_destroy(&lines->mutex);
    (void)pthread_cond_destroy(&lines->changed);
    free(lines->text);
    free(lines);
    return error;
}
