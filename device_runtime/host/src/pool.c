#define _DEFAULT_SOURCE /* _SC_NPROCESSORS_ONLN */

#include "hvdc/pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hvdc_pool {
    pthread_mutex_t lock;
    pthread_cond_t begun, ended;
    uint32_t threads; /* the caller included */
    uint32_t started; /* threads[0, started) exist */
    bool stop;
    uint64_t loop; /* loops begun so far */

    /* The running loop: indices [next, total) are not handed out yet, `busy` threads work on a piece. */
    hvdc_pool_work *work;
    void *context;
    uint32_t next, total, grain, busy;

    struct hvdc_pool_thread {
        hvdc_pool *pool;
        uint32_t worker;
        pthread_t thread;
    } members[];
};

/* Takes pieces of the running loop until none is left. The lock is held on entry and on return. */
static void take_pieces(hvdc_pool *pool, uint32_t worker) {
    while (pool->next < pool->total) {
        uint32_t first = pool->next, left = pool->total - first;
        uint32_t count = left < pool->grain ? left : pool->grain;
        hvdc_pool_work *work = pool->work;
        void *context = pool->context;
        pool->next = first + count;
        pool->busy++;
        pthread_mutex_unlock(&pool->lock);
        work(context, first, count, worker);
        pthread_mutex_lock(&pool->lock);
        pool->busy--;
    }
    if (pool->busy == 0u) {
        pthread_cond_signal(&pool->ended);
    }
}

static void *serve(void *argument) {
    struct hvdc_pool_thread *member = argument;
    hvdc_pool *pool = member->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->loop == seen && !pool->stop) {
            pthread_cond_wait(&pool->begun, &pool->lock);
        }
        if (pool->stop) {
            break;
        }
        seen = pool->loop;
        take_pieces(pool, member->worker);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

bool hvdc_pool_open(uint32_t threads, hvdc_pool **pool, hvdc_failure *failure) {
    *pool = NULL;
    if (threads == 0u) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        const long most = (long)HVDC_POOL_MAX_THREADS;
        threads = online < 1 ? 1u : online > most ? HVDC_POOL_MAX_THREADS : (uint32_t)online;
    }
    if (threads > HVDC_POOL_MAX_THREADS) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%u threads are more than the limit of %u", (unsigned)threads,
                         HVDC_POOL_MAX_THREADS);
    }
    hvdc_pool *made = calloc(1, sizeof *made + threads * sizeof made->members[0]);
    if (made == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for a pool of %u threads", (unsigned)threads);
    }
    made->threads = threads;
    made->started = 1;
    pthread_mutex_init(&made->lock, NULL); /* with default attributes these cannot fail on Linux */
    pthread_cond_init(&made->begun, NULL);
    pthread_cond_init(&made->ended, NULL);
    for (uint32_t worker = 1; worker < threads; worker++) {
        struct hvdc_pool_thread *member = &made->members[worker];
        *member = (struct hvdc_pool_thread){.pool = made, .worker = worker};
        int status = pthread_create(&member->thread, NULL, serve, member);
        if (status != 0) {
            hvdc_pool_close(made);
            return hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                             "thread %u of %u cannot be started: %s; ask for fewer threads", (unsigned)worker + 1u,
                             (unsigned)threads, strerror(status));
        }
        made->started++;
    }
    *pool = made;
    return true;
}

void hvdc_pool_close(hvdc_pool *pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->begun);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t worker = 1; worker < pool->started; worker++) {
        pthread_join(pool->members[worker].thread, NULL);
    }
    pthread_cond_destroy(&pool->ended);
    pthread_cond_destroy(&pool->begun);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

uint32_t hvdc_pool_threads(const hvdc_pool *pool) { return pool->threads; }

void hvdc_pool_run(hvdc_pool *pool, uint32_t total, uint32_t grain, hvdc_pool_work *work, void *context) {
    pthread_mutex_lock(&pool->lock);
    pool->work = work;
    pool->context = context;
    pool->next = 0;
    pool->total = total;
    pool->grain = grain == 0u ? 1u : grain;
    pool->loop++;
    if (total > pool->grain) {
        pthread_cond_broadcast(&pool->begun);
    }
    take_pieces(pool, 0);
    while (pool->busy > 0u) {
        pthread_cond_wait(&pool->ended, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}
