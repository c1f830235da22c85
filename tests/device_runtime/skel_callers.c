/* Several threads of one client call the DSP's end at once, through a stand-in of FastRPC's library:
 *
 *   skel_callers STAND_IN ARTIFACT ENGINES MAPPERS SHARED ROUNDS
 *
 * ENGINES threads each open an engine with four threads of its own, which take turns at the model of the matrix unit, and
 * execute a block, ROUNDS times; whoever finds the units held tries again. MAPPERS threads each have 24 times as many
 * sessions that map and unmap. SHARED threads do that 96 times as often in one session of all of them. Prints how often each was done, and a line for what is
 * wrong. Exit status: 0 if nothing was. */
#define _GNU_SOURCE

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "link.h"

#define MOST 8u
#define BYTES 8192u

static hvdc_dsp_options options;
static hvdc_artifact *artifact;
static hvdc_rpc_link common;
static unsigned rounds;
static atomic_uint engines_done, maps_done, shared_done, wrong;
static pthread_barrier_t start;
static pthread_mutex_t first_mutex = PTHREAD_MUTEX_INITIALIZER;
static float *first; /* what the first engine computed: all compute the same */

static void say(const char *what, const hvdc_failure *failure) {
    (void)fprintf(stderr, "wrong: %s: %s\n", what, failure == NULL ? "" : failure->message);
    atomic_fetch_add(&wrong, 1u);
}

/* A DSP has so many sessions and units, and others have them now. */
static bool is_busy(const hvdc_failure *failure) {
    return strstr(failure->message, "held by another session") != NULL || strstr(failure->message, "0x2d") != NULL;
}

static void compare(const float *hidden, size_t values) {
    (void)pthread_mutex_lock(&first_mutex);
    if (first == NULL) {
        first = malloc(values * sizeof *first);
        if (first != NULL) memcpy(first, hidden, values * sizeof *first);
    } else if (memcmp(first, hidden, values * sizeof *first) != 0) {
        say("another result", NULL);
    }
    (void)pthread_mutex_unlock(&first_mutex);
}

static bool execute(hvdc_engine *engine, hvdc_failure *failure) {
    const hvdc_geometry *g = hvdc_artifact_geometry(artifact);
    const size_t values = (size_t)options.grid.frames * options.grid.rows * options.grid.columns * g->width;
    float *hidden = malloc(values * sizeof *hidden), *text = calloc((size_t)g->text_tokens * g->width, sizeof *text);
    for (size_t i = 0; i < values; i++) hidden[i] = (float)(i % 7u) * 0.25f - 0.75f;
    const uint32_t expert = hvdc_artifact_step(artifact, 0)->expert;
    const bool good = engine->set_text(engine, expert, text, failure) && engine->run(engine, 0, 0, 1, hidden, failure);
    if (good) compare(hidden, values);
    free(hidden);
    free(text);
    return good;
}

static void *use_engines(void *unused) {
    const hvdc_weights weights = {.artifact = artifact};
    (void)pthread_barrier_wait(&start);
    for (unsigned done = 0; done < rounds;) {
        hvdc_engine *engine = NULL;
        hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
        if (!hvdc_dsp_open(&weights, &options, &engine, &failure)) {
            if (!is_busy(&failure)) {
                say("an engine cannot be opened", &failure);
                return NULL;
            }
            (void)sched_yield();
            continue;
        }
        if (!execute(engine, &failure)) say("an engine fails", &failure);
        hvdc_engine_close(engine);
        atomic_fetch_add(&engines_done, 1u);
        done++;
    }
    return unused;
}

static int memory_of(void **data) {
    const int fd = memfd_create("callers", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, BYTES) != 0) return -1;
    *data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return fd;
}

static void *use_mappers(void *unused) {
    void *data = NULL;
    const int fd = memory_of(&data);
    (void)pthread_barrier_wait(&start);
    for (unsigned done = 0; done < 24u * rounds;) {
        hvdc_dsp_mapper *mapper = NULL;
        hvdc_dsp_description description;
        hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
        if (!hvdc_dsp_mapper_open(&options, &mapper, &description, &failure)) {
            if (!is_busy(&failure)) {
                say("a session cannot be opened", &failure);
                break;
            }
            (void)sched_yield();
            continue;
        }
        if (!hvdc_dsp_mapper_map(mapper, data, fd, BYTES, &failure)) say("nothing is mapped", &failure);
        hvdc_dsp_mapper_close(mapper);
        atomic_fetch_add(&maps_done, 1u);
        done++;
    }
    (void)munmap(data, BYTES);
    (void)close(fd);
    return unused;
}

static void *use_common(void *unused) {
    void *data = NULL;
    const int fd = memory_of(&data);
    (void)pthread_barrier_wait(&start);
    for (unsigned done = 0; done < 96u * rounds; done++) {
        hvdc_rpc_map_in in = {.fd = (uint32_t)fd, .bytes = BYTES, .writable = 1};
        hvdc_rpc_map_out out;
        hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
        if (!hvdc_link_call(&common, HVDC_RPC_map, &in, &out, NULL, &failure)) {
            say("the common session maps nothing", &failure);
            break;
        }
        hvdc_rpc_unmap_in undo = {.region = out.region};
        hvdc_rpc_unmap_out undone;
        if (!hvdc_link_call(&common, HVDC_RPC_unmap, &undo, &undone, NULL, &failure))
            say("the common session unmaps nothing", &failure);
        atomic_fetch_add(&shared_done, 1u);
    }
    (void)munmap(data, BYTES);
    (void)close(fd);
    return unused;
}

static bool open_common(hvdc_failure *failure) {
    hvdc_rpc_hello_in hello = {.version = HVDC_RUNTIME_VERSION};
    hvdc_rpc_hello_out facts;
    return hvdc_link_open(&options, &common, failure) &&
           hvdc_link_call(&common, HVDC_RPC_hello, &hello, &facts, NULL, failure);
}

int main(int argc, char **argv) {
    void *(*const works[])(void *) = {use_engines, use_mappers, use_common};
    unsigned counts[3], all = 0;
    pthread_t threads[3u * MOST];
    hvdc_failure failure;
    hvdc_error error;
    if (argc != 7) return 2;
    for (int i = 0; i < 3; i++) all += counts[i] = (unsigned)strtoul(argv[3 + i], NULL, 10) % (MOST + 1u);
    rounds = (unsigned)strtoul(argv[6], NULL, 10);
    options = (hvdc_dsp_options){.library = argv[1], .threads = 4, .grid = {.frames = 1, .rows = 2, .columns = 3}};
    if (hvdc_artifact_open(argv[2], &artifact, &error) != HVDC_E_OK) return 2;
    if (!open_common(&failure)) {
        say("the common session", &failure);
        return 1;
    }
    (void)pthread_barrier_init(&start, NULL, all);
    unsigned at = 0;
    for (int i = 0; i < 3; i++)
        for (unsigned n = 0; n < counts[i]; n++) (void)pthread_create(&threads[at++], NULL, works[i], NULL);
    for (unsigned i = 0; i < at; i++) (void)pthread_join(threads[i], NULL);
    hvdc_link_close(&common);
    hvdc_artifact_close(artifact);
    free(first);
    (void)printf("%u %u %u\n", atomic_load(&engines_done), atomic_load(&maps_done), atomic_load(&shared_done));
    return atomic_load(&wrong) == 0 ? 0 : 1;
}
