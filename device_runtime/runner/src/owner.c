/* The process of the NPU: owns the weights, starts the GPU's process, runs the stream. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clips.h"
#include "engines.h"
#include "hvdc/shared_weights.h"
#include "hvdc/stream_file.h"
#include "memory.h"
#include "processors.h"
#include "report.h"
#include "roles.h"
#include "timing.h"

typedef struct hvdc_owner {
    hvdc_options options;
    hvdc_artifact *artifact;
    hvdc_stream_file *input;
    hvdc_clips *clips; /* NULL: latents are not decoded */
    hvdc_clips_facts decoder;
    hvdc_shared_weights *weights;
    hvdc_side side;
    hvdc_partner partner; /* of `npu`, in mode hetero-tensor */
    hvdc_engine *npu;
    int stop_fd;
    char gpu_cpus[HVDC_CPU_LIST_BYTES]; /* "": as this process had */
    hvdc_video *videos;
    hvdc_outcome outcome;
} hvdc_owner;

/* Pins this process. The GPU's inherits that, so that it is told what it may use. */
static bool pin(hvdc_owner *owner, hvdc_failure *failure) {
    const hvdc_options *options = &owner->options;
    if (!hvdc_processors_check(options->gpu_cpus, failure)) return false;
    if (options->gpu_cpus != NULL)
        (void)snprintf(owner->gpu_cpus, sizeof owner->gpu_cpus, "%s", options->gpu_cpus);
    else if (options->npu_cpus != NULL && !hvdc_processors_list(owner->gpu_cpus, failure))
        return false;
    return hvdc_processors_use(options->npu_cpus, failure);
}

static bool check_stream(const hvdc_owner *owner, hvdc_failure *failure) {
    const hvdc_stream_header *h = hvdc_stream_file_header(owner->input);
    const hvdc_trajectory *t = &owner->outcome.trajectory;
    const uint8_t *own = hvdc_artifact_header(owner->artifact)->index_sha256;
    if (memcmp(h->artifact_sha256, own, sizeof h->artifact_sha256) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "the stream %s was written for another artifact than %s: write it again with `hvdc run`",
                         owner->options.stream, owner->options.artifact);
    if (h->tokens != t->tokens || h->latent_values != t->latent_values || h->text_tokens != t->text_tokens ||
        h->text_width != t->text_width)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "the stream %s has latents of %" PRIu32 " x %" PRIu32 " and prompts of %" PRIu32 " x %" PRIu32
                         ", the artifact %" PRIu32 " x %" PRIu32 " and %" PRIu32 " x %" PRIu32,
                         owner->options.stream, h->tokens, h->latent_values, h->text_tokens, h->text_width, t->tokens,
                         t->latent_values, t->text_tokens, t->text_width);
    return true;
}

/* With hvdc_stop_signals called before, the parent's end is a request to stop. */
static bool follow_parent(const hvdc_options *options, hvdc_failure *failure) {
    if (options->parent == 0) return true;
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "--with-parent is not possible here: %s", strerror(errno));
    if ((uint32_t)getppid() != options->parent)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "process %" PRIu32 " did not start this one, or has ended",
                         options->parent);
    return true;
}

/* The cut, or in mode hetero-tensor the share, by the outcome's rates. */
static bool follow_rates(hvdc_outcome *outcome, enum hvdc_mode mode, hvdc_failure *failure) {
    if (mode == HVDC_MODE_TENSOR) return hvdc_balanced_share(&outcome->rates, &outcome->gpu_share, failure);
    return hvdc_best_cut(&outcome->rates, outcome->trajectory.steps * outcome->trajectory.layers, &outcome->cut,
                         failure);
}

/* As far as it needs no engine. */
static bool place(hvdc_outcome *outcome, hvdc_failure *failure) {
    const hvdc_options *options = outcome->options;
    const bool given = options->cut_is_given || options->share_is_given;
    outcome->cut = options->cut;
    outcome->gpu_share = options->gpu_share;
    outcome->rates = options->rates;
    outcome->policy = options->policy;
    outcome->is_placed = given || options->rates_are_given;
    if (options->mode == HVDC_MODE_HETERO || options->mode == HVDC_MODE_TENSOR)
        outcome->cut_source = given ? HVDC_CUT_GIVEN : outcome->is_placed ? HVDC_CUT_FROM_RATES : HVDC_CUT_MEASURED;
    return !options->rates_are_given || follow_rates(outcome, options->mode, failure);
}

/* What can be refused before a weight is read. */
static bool open_inputs(hvdc_owner *owner, hvdc_failure *failure) {
    const hvdc_options *options = &owner->options;
    if (!hvdc_check_gpu_import(options, failure) || !hvdc_open_artifact(options->artifact, &owner->artifact, failure) ||
        !hvdc_stream_file_open(options->stream, &owner->input, failure))
        return false;
    owner->outcome.trajectory = hvdc_trajectory_of(owner->artifact);
    owner->outcome.videos = hvdc_stream_file_header(owner->input)->videos;
    uint32_t executions = owner->outcome.trajectory.steps * owner->outcome.trajectory.layers;
    if (!check_stream(owner, failure)) return false;
    if (options->cut_is_given && options->cut > executions)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "--cut %" PRIu32 " is beyond the %" PRIu32 " blocks of a video",
                         options->cut, executions);
    if (!place(&owner->outcome, failure)) return false;
    if (hvdc_outcome_needs_gpu(&owner->outcome) && hvdc_artifact_calibration(owner->artifact) == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "the artifact %s has no activation scales, which the GPU needs: take mode npu, or compile it "
                         "with --prompts or --calibration",
                         options->artifact);
    if (mkdir(options->output, 0777) != 0 && errno != EEXIST)
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be made: %s", options->output, strerror(errno));
    if (!hvdc_clips_open(options, owner->artifact, owner->outcome.videos, &owner->clips, failure)) return false;
    if (owner->clips != NULL) {
        hvdc_clips_describe(owner->clips, &owner->decoder);
        owner->outcome.decoder = &owner->decoder;
    }
    owner->videos = calloc(owner->outcome.videos, sizeof *owner->videos);
    if (owner->videos == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for the report");
    return hvdc_memory_is_there(owner->artifact, &owner->outcome, failure);
}

static uint64_t memory_limit(const hvdc_owner *owner) { return (uint64_t)owner->options.memory_mib << 20; }

static void say_decoder(const hvdc_owner *owner) {
    const hvdc_clips_facts *d = owner->outcome.decoder;
    if (d != NULL) hvdc_say(&owner->options, "note", "decoder: %s; %s", d->decoder, d->memory);
}

/* What the DSP's self-test found. Fails where no result of its units would be of any worth. */
static bool judge_npu(const hvdc_owner *owner, hvdc_dsp_findings *findings, hvdc_failure *failure) {
    char *report = findings->report;
    hvdc_dsp_line line;
    while (hvdc_dsp_next_line(&report, &line))
        if (strcmp(line.state, "FAILED") == 0)
            hvdc_say(&owner->options, "note", "the NPU's self-test: %s failed: %s; %s", line.name, line.why,
                     line.meaning);
    return findings->worthless == 0 ||
           hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                     "%" PRIu32
                     " checks of the NPU's self-test failed after which none of its results is of any worth: "
                     "hvdc_selftest, in the artifact's runtime/, says which; take --npu portable",
                     findings->worthless);
}

static bool open_engines(hvdc_owner *owner, hvdc_failure *failure) {
    static hvdc_dsp_findings findings; /* large */
    hvdc_outcome *outcome = &owner->outcome;
    say_decoder(owner);
    if (!hvdc_shared_weights_load(owner->artifact, memory_limit(owner), &owner->weights, failure)) return false;
    outcome->weights_bytes = hvdc_shared_weights_bytes(owner->weights);
    outcome->weights_kind = hvdc_shared_weights_kind(owner->weights);
    hvdc_say(&owner->options, "note", "weights: %.1f MiB, verified, in shared memory (%s)",
             (double)outcome->weights_bytes / (1 << 20), outcome->weights_kind);
    const hvdc_weights *view = hvdc_shared_weights_view(owner->weights);
    if (!hvdc_side_open(view, &owner->options, &owner->side, failure) ||
        !hvdc_open_npu(view, &owner->options, &owner->partner, &findings, &owner->npu, failure) ||
        !judge_npu(owner, &findings, failure))
        return false;
    outcome->npu_checks_failed = findings.failed;
    hvdc_npu_text(owner->npu, outcome->npu);
    if (owner->options.npu == HVDC_NPU_DSP)
        hvdc_say(&owner->options, "note", "the NPU's blocks run on %s", outcome->npu);
    outcome->host_bytes = hvdc_host_memory_bytes(owner->side.host);
    return true;
}

static const char *gpu_cpus(const hvdc_owner *owner) { return owner->gpu_cpus[0] == 0 ? NULL : owner->gpu_cpus; }

static bool place_cut(hvdc_owner *owner, hvdc_timed_end *end, hvdc_failure *failure) {
    const hvdc_options *options = &owner->options;
    hvdc_outcome *outcome = &owner->outcome;
    if (options->mode != HVDC_MODE_HETERO && options->mode != HVDC_MODE_TENSOR) return true;
    if (!outcome->is_placed) {
        hvdc_say(options, "note", "no rates are given: blocks of both engines are timed, while both work");
        if (!hvdc_time_engines(options, &outcome->trajectory, owner->npu, gpu_cpus(owner), owner->stop_fd,
                               &outcome->rates, end, failure) ||
            !follow_rates(outcome, options->mode, failure))
            return false;
        outcome->is_placed = true;
    }
    outcome->policy.rates = outcome->rates;
    hvdc_say_cut(outcome);
    return true;
}

struct io {
    hvdc_owner *owner;
    hvdc_speaker speaker;
};

static bool load(void *context, uint32_t video, float *latent, float *embeds, hvdc_failure *failure) {
    const struct io *io = context;
    const hvdc_trajectory *t = &io->owner->outcome.trajectory;
    const float *from = hvdc_stream_file_latent(io->owner->input, video);
    if (from == NULL) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the stream has no video %" PRIu32, video);
    memcpy(latent, from, (size_t)t->tokens * t->latent_values * sizeof *latent);
    memcpy(embeds, hvdc_stream_file_embeds(io->owner->input, video),
           (size_t)t->text_tokens * t->text_width * sizeof *embeds);
    return true;
}

static bool decode(void *context, uint32_t video, const float *latent, const hvdc_decoding *decoding,
                   hvdc_failure *failure) {
    const struct io *io = context;
    return hvdc_clips_decode(io->owner->clips, video, latent, decoding, failure);
}

static bool check_decoded(void *context, uint32_t video, const float *latent, bool *decoded, hvdc_failure *failure) {
    const struct io *io = context;
    return hvdc_clips_check(io->owner->clips, video, latent, decoded, failure);
}

static void say_progress(void *context, const hvdc_progress *progress) {
    struct io *io = context;
    if (progress->event == HVDC_EVENT_STARTED) hvdc_say_weights_use(&io->owner->outcome);
    hvdc_say_progress(&io->speaker, progress);
}

static bool run(hvdc_owner *owner, hvdc_failure *failure) {
    const hvdc_options *options = &owner->options;
    hvdc_outcome *outcome = &owner->outcome;
    char threads[16], *worker_argv[HVDC_ARGUMENTS_MAX];
    hvdc_options_for(HVDC_ROLE_WORKER, options, gpu_cpus(owner), threads, worker_argv);
    const bool needs_gpu = hvdc_outcome_needs_gpu(outcome), chosen = outcome->policy.policy != HVDC_POLICY_STATIC;
    if (needs_gpu) hvdc_say(options, "note", "the GPU's process starts; it compiles its kernels, unless they are kept");
    struct io io = {.owner = owner, .speaker = {.options = options, .trajectory = &outcome->trajectory}};
    const hvdc_stream stream = {
        .trajectory = outcome->trajectory,
        .weights = owner->weights,
        .npu = owner->npu,
        .partner = options->mode == HVDC_MODE_TENSOR ? &owner->partner : NULL,
        .host = owner->side.ops,
        .io = {.context = &io,
               .load = load,
               .decode = owner->clips == NULL ? NULL : decode,
               .check_decoded = check_decoded,
               .progress = say_progress},
        .options = {.mode = options->mode,
                    .cut = chosen ? 0 : outcome->cut,
                    .policy = outcome->policy,
                    .gpu_share = outcome->gpu_share,
                    .npu_sums = hvdc_npu_sums_name(options->npu_sums),
                    .videos = outcome->videos,
                    .stop_when_gpu_lost = options->stop_when_gpu_lost,
                    .resume = options->resume,
                    .start_timeout_s = 2.0 * options->gpu_silence_s,
                    .silence_timeout_s = options->gpu_silence_s,
                    .npu_silence_timeout_s = options->npu_silence_s,
                    .memory_limit_bytes = memory_limit(owner),
                    .on_stop = options->abandon ? HVDC_STOP_ABANDON : HVDC_STOP_FINISH,
                    .stop_fd = owner->stop_fd,
                    .directory = options->output,
                    .trace = options->trace,
                    .worker_argv = needs_gpu ? worker_argv : NULL},
    };
    outcome->report.videos = owner->videos;
    bool ran = hvdc_stream_run(&stream, &outcome->report, failure);
    hvdc_npu_copies(owner->npu, &outcome->npu_weights_copied_bytes, &outcome->npu_hidden_copied);
    if (owner->clips != NULL) hvdc_clips_describe(owner->clips, &owner->decoder);
    return ran;
}

static void close_owner(hvdc_owner *owner) {
    hvdc_engine_close(owner->npu);
    hvdc_side_close(&owner->side);
    hvdc_shared_weights_close(owner->weights);
    hvdc_clips_close(owner->clips);
    hvdc_stream_file_close(owner->input);
    hvdc_artifact_close(owner->artifact);
    free(owner->videos);
    if (owner->stop_fd >= 0) (void)close(owner->stop_fd);
}

enum hvdc_exit hvdc_be_owner(const hvdc_options *options, FILE *out) {
    hvdc_owner owner = {.options = *options, .stop_fd = -1};
    hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
    hvdc_timed_end timed = {.stopped = false};
    bool ran = false;
    owner.stop_fd = hvdc_stop_signals(&failure);
    bool good = owner.stop_fd >= 0 && follow_parent(options, &failure) && pin(&owner, &failure);
    if (good && owner.options.threads == 0) owner.options.threads = hvdc_processors_count();
    owner.outcome.options = &owner.options;
    if (good) hvdc_say_aside(true);
    good =
        good && open_inputs(&owner, &failure) && open_engines(&owner, &failure) && place_cut(&owner, &timed, &failure);
    if (good) {
        good = run(&owner, &failure);
        ran = true;
    }
    const bool stopped = timed.stopped || owner.outcome.report.stopped;
    if (!good) hvdc_print_failure(out, &owner.options, &failure);
    if (good && ran && !hvdc_print_outcome(out, &owner.outcome)) good = false;
    hvdc_say_no_more(good ? HVDC_PROGRESS_PATIENCE_S : options->reader_silence_s);
    if (timed.npu_hangs || owner.outcome.report.npu_hangs)
        _exit(HVDC_EXIT_NPU_HANGS); /* nothing that the call may use is closed */
    close_owner(&owner);
    if (stopped) return HVDC_EXIT_STOPPED;
    return good ? HVDC_EXIT_OK : failure.kind == HVDC_FAILURE_NONE ? HVDC_EXIT_FAILURE : hvdc_exit_of(&failure);
}
