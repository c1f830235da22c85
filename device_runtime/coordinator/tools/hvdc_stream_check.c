/* Streams with engines that compute whole numbers, for tests.
 *
 *     hvdc_stream_check run WORD…      one stream; prints its events as they come, and its report as JSON
 *     hvdc_stream_check serve          the same for each line of stdin, without events
 *     hvdc_stream_check worker WORD…   what the other two start
 *     hvdc_stream_check proxy WORD…    the same behind a proxy
 *
 * Words are those of check_spec.c. The report also says what the stream left behind: descriptors, mappings, children. */
#define _GNU_SOURCE

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check_engine.h"
#include "check_proxy.h"
#include "hvdc/channel.h"
#include "hvdc/json.h"

#define SELF "/proc/self/exe"
#define HANGS 6 /* exit status */

typedef struct check {
    const check_spec *spec;
    bool tells; /* events */
    uint32_t finished[4096], finished_count;
} check;

static bool load(void *context, uint32_t video, float *latent, float *embeds, hvdc_failure *failure) {
    const check *c = context;
    if (video == c->spec->load_fails_at)
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "the inputs of video %u cannot be read", (unsigned)video);
    check_sleep_us(c->spec->load_us);
    check_inputs(c->spec, video, latent, embeds);
    return true;
}

static bool decode(void *context, uint32_t video, const float *latent, const hvdc_decoding *decoding,
                   hvdc_failure *failure) {
    const check *c = context;
    (void)latent;
    if (video == c->spec->decode_fails_at)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "the decoder refuses video %u", (unsigned)video);
    while (video == c->spec->decode_hangs_at) (void)pause();
    check_sleep_us(c->spec->decode_us);
    return decoding->progress(decoding->context, 1, 1) ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "decoding was stopped");
}

/* The videos that a policy saw, for a replay of what it chose. */
static void print_on_way(const hvdc_progress *p) {
    (void)printf("seen %u", (unsigned)p->video);
    for (uint32_t i = 0; i < p->in_flight_count; i++) {
        const hvdc_in_flight *v = &p->in_flight[i];
        (void)printf(" %u,%u,%.17g,%.17g,%.17g", (unsigned)v->video, (unsigned)v->cut, v->gpu_start_s, v->gpu_end_s,
                     v->npu_start_s);
    }
    (void)printf("\n");
}

static void progress(void *context, const hvdc_progress *p) {
    static const char *const names[] = {"started", "blocks",   "handoff",  "decoding", "finished",
                                        "skipped", "gpu lost", "stopping", "cut"};
    check *c = context;
    if (p->event == HVDC_EVENT_FINISHED && c->finished_count < 4096) c->finished[c->finished_count++] = p->video;
    if (p->event == HVDC_EVENT_CUT && c->tells) print_on_way(p);
    if (!c->tells) return;
    (void)printf("event %s %u %u %s\n", names[p->event], (unsigned)p->video, (unsigned)p->position,
                 p->text == NULL ? "" : p->text);
    (void)fflush(stdout);
}

static unsigned count_descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;
    while (directory != NULL && readdir(directory) != NULL) count++;
    if (directory != NULL) (void)closedir(directory);
    return count;
}

static unsigned count_shared_mappings(void) {
    FILE *file = fopen("/proc/self/maps", "re");
    char line[1024];
    unsigned count = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) count += strstr(line, "memfd:hvdc") != NULL;
    if (file != NULL) (void)fclose(file);
    return count;
}

static void print_text(const char *name, const char *text) {
    (void)printf("\"%s\": ", name);
    hvdc_json_text(stdout, text);
}

static void print_choice(const hvdc_cut_choice *c) {
    if (c->made)
        (void)printf(
            "{\"at_s\": %.17g, \"arrival_s\": %.17g, \"not_before_s\": %.17g, \"gpu_block_s\": %.17g, \"npu_block_s\": "
            "%.17g, "
            "\"decode_s\": %.17g, \"gpu_videos\": %u, \"npu_videos\": %u, \"gpu_free_s\": %.17g, "
            "\"npu_free_s\": %.17g}",
            c->at_s, c->arrival_s, c->not_before_s, c->rates.gpu_block_s, c->rates.npu_block_s, c->rates.decode_s,
            (unsigned)c->gpu_videos, (unsigned)c->npu_videos, c->ready.gpu_s, c->ready.npu_s);
    else
        (void)printf("null");
}

static void print_report(const check *c, bool ran, const hvdc_stream_report *r, const hvdc_failure *failure,
                         unsigned descriptors, unsigned mappings) {
    (void)printf("{\"ok\": %s, \"kind\": %d, ", ran ? "true" : "false", ran ? 0 : (int)failure->kind);
    print_text("failure", ran ? "" : failure->message);
    (void)printf(", ");
    print_text("note", r->note);
    (void)printf(
        ", \"finished\": %u, \"skipped\": %u, \"gpu_lost\": %s, \"npu_hangs\": %s, \"stopped\": %s, \"seconds\": %.6f, "
        "\"period_s\": %.6f, \"slot_bytes\": %llu, \"gpu_engine_bytes\": %llu, \"npu_engine_bytes\": %llu, ",
        (unsigned)r->finished, (unsigned)r->skipped, r->gpu_lost ? "true" : "false", r->npu_hangs ? "true" : "false",
        r->stopped ? "true" : "false", r->seconds, r->period_s, (unsigned long long)r->slot_bytes,
        (unsigned long long)r->gpu_engine_bytes, (unsigned long long)r->npu_engine_bytes);
    (void)printf("\"order\": [");
    for (uint32_t i = 0; i < c->finished_count; i++) (void)printf("%s%u", i > 0 ? ", " : "", (unsigned)c->finished[i]);
    (void)printf("], \"videos\": [");
    for (uint32_t i = 0; i < c->spec->options.videos; i++) {
        const hvdc_video *v = &r->videos[i];
        (void)printf(
            "%s{\"video\": %u, \"cut\": %u, \"gpu_blocks\": %u, \"recovered\": %s, \"skipped\": %s, \"started_s\": "
            "%.6f, "
            "\"finished_s\": %.6f, \"gpu_s\": %.6f, \"npu_s\": %.6f, \"cpu_s\": %.6f, \"waiting_s\": %.6f, "
            "\"decode_s\": %.17g, \"gpu_stage_s\": %.17g, \"npu_stage_s\": %.17g, \"choice\": ",
            i > 0 ? ", " : "", (unsigned)v->video, (unsigned)v->cut, (unsigned)v->gpu_blocks,
            v->recovered ? "true" : "false", v->skipped ? "true" : "false", v->started_s, v->finished_s, v->gpu_s,
            v->npu_s, v->cpu_s, v->waiting_s, v->decode_s, v->gpu_stage_s, v->npu_stage_s);
        print_choice(&v->choice);
        (void)printf("}");
    }
    errno = 0;
    bool children = waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD;
    (void)printf("], \"left_descriptors\": %d, \"left_mappings\": %d, \"left_children\": %s}\n",
                 (int)count_descriptors() - (int)descriptors, (int)count_shared_mappings() - (int)mappings,
                 children ? "true" : "false");
    (void)fflush(stdout);
}

static bool open_weights(check_spec *spec, hvdc_artifact **artifact, hvdc_failure *failure) {
    hvdc_error error;
    if (spec->artifact == NULL) return true;
    if (hvdc_artifact_open(spec->artifact, artifact, &error) != HVDC_E_OK)
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "%s: %s", error.file, error.message);
    spec->trajectory = hvdc_trajectory_of(*artifact);
    return true;
}

/* Words as the worker's arguments, behind the roles that it has. */
static void worker_arguments(const check_spec *spec, char *const *words, int count, char **arguments) {
    static char self[] = SELF, proxy[] = "proxy", worker[] = "worker";
    int at = 0;
    arguments[at++] = self;
    if (spec->proxy != NULL) {
        arguments[at++] = proxy;
        arguments[at++] = (char *)(uintptr_t)spec->proxy;
        arguments[at++] = self;
    }
    arguments[at++] = worker;
    for (int i = 0; i < count; i++) arguments[at++] = words[i];
    arguments[at] = NULL;
}

static bool run_stream(check_spec *spec, char *const *words, int count, bool tells) {
    unsigned descriptors = count_descriptors(), mappings = count_shared_mappings();
    char *arguments[CHECK_WORDS_MAX + 8];
    hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
    hvdc_artifact *artifact = NULL;
    hvdc_shared_weights *weights = NULL;
    hvdc_engine *npu = NULL;
    hvdc_partner partner = {.share = 0.0};
    check c = {.spec = spec, .tells = tells};
    hvdc_stream_report report = {.videos = calloc(spec->options.videos, sizeof *report.videos)};
    bool ran =
        open_weights(spec, &artifact, &failure) &&
        (artifact == NULL || hvdc_shared_weights_load(artifact, (uint64_t)spec->limit_kib << 10, &weights, &failure)) &&
        check_engine_open(spec, false, &partner, &npu, &failure);
    if (ran) {
        partner.exchange.values = (uint64_t)spec->trajectory.tokens * spec->trajectory.width;
        worker_arguments(spec, words, count, arguments);
        spec->options.worker_argv = arguments;
        hvdc_stream stream = {
            .trajectory = spec->trajectory,
            .weights = weights,
            .npu = npu,
            .partner = &partner,
            .host = check_host_ops(npu),
            .io = {.context = &c, .load = load, .decode = spec->decodes ? decode : NULL, .progress = progress},
            .options = spec->options};
        ran = hvdc_stream_run(&stream, &report, &failure);
    }
    if (report.npu_hangs) { /* nothing may be closed */
        print_report(&c, ran, &report, &failure, descriptors, mappings);
        _exit(HANGS);
    }
    hvdc_engine_close(npu);
    hvdc_shared_weights_close(weights);
    hvdc_artifact_close(artifact);
    print_report(&c, ran, &report, &failure, descriptors, mappings);
    free(report.videos);
    return ran;
}

static bool open_worker(void *context, const hvdc_weights *weights, hvdc_engine **engine, hvdc_host_ops *host,
                        hvdc_failure *failure) {
    const check_spec *spec = context;
    if (spec->artifact != NULL && weights == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_PEER, "the worker has no weights");
    if (!check_engine_open(spec, true, NULL, engine, failure)) return false;
    *host = check_host_ops(*engine);
    return true;
}

static int refuse(uint32_t when) {
    hvdc_channel channel = hvdc_channel_on(HVDC_WORKER_FD);
    struct pollfd hello = {.fd = HVDC_WORKER_FD, .events = POLLIN};
    hvdc_failure why;
    (void)hvdc_fail(&why, HVDC_FAILURE_USAGE, "the worker does not even begin");
    (void)hvdc_channel_refuse(&channel, HVDC_WORKER_SAY_NO, &why);
    if (when == 2) (void)poll(&hello, 1, -1);
    return 1;
}

static int run_worker(check_spec *spec) {
    hvdc_failure failure;
    hvdc_artifact *artifact = NULL;
    if (spec->refuses != 0) return refuse(spec->refuses);
    if (!open_weights(spec, &artifact, &failure)) return 1;
    hvdc_worker worker = {.artifact = artifact,
                          .trajectory = spec->trajectory,
                          .context = spec,
                          .open = open_worker,
                          .multiply = check_multiply};
    int status = hvdc_worker_serve(&worker);
    hvdc_artifact_close(artifact);
    return status;
}

static int serve(void) {
    static char line[16384];
    while (fgets(line, sizeof line, stdin) != NULL) {
        char *words[CHECK_WORDS_MAX], *rest = NULL;
        int count = 0;
        for (char *word = strtok_r(line, " \n", &rest); word != NULL && count < CHECK_WORDS_MAX;
             word = strtok_r(NULL, " \n", &rest))
            words[count++] = word;
        check_spec spec;
        const char *wrong = check_spec_read(words, count, &spec);
        if (wrong != NULL) {
            (void)fprintf(stderr, "what is %s?\n", wrong);
            return 2;
        }
        (void)run_stream(&spec, words, count, false);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[1], "proxy") == 0) return check_proxy(argv[2], argv + 3);
    if (argc == 2 && strcmp(argv[1], "serve") == 0) return serve();
    check_spec spec;
    bool runs = argc >= 2 && argc - 2 <= CHECK_WORDS_MAX && strcmp(argv[1], "run") == 0;
    bool works = argc >= 2 && strcmp(argv[1], "worker") == 0;
    const char *wrong = runs || works ? check_spec_read(argv + 2, argc - 2, &spec) : "asked";
    if (wrong != NULL) {
        (void)fprintf(stderr, "what is %s? see the start of hvdc_stream_check.c\n", wrong);
        return 2;
    }
    if (works) return run_worker(&spec);
    hvdc_failure failure;
    spec.options.stop_fd = hvdc_stop_signals(&failure);
    if (spec.options.stop_fd < 0) return 1;
    bool ran = run_stream(&spec, argv + 2, argc - 2, true);
    (void)close(spec.options.stop_fd);
    return ran ? 0 : 1;
}
