#define _POSIX_C_SOURCE 200809L

#include "options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    TEXT,
    COUNT,
    SECONDS,
    DURATION,
    MODE,
    CUT,
    SHARE,
    SUMS,
    POLICY,
    SINCE,
    LOSS,
    STOP,
    EMULATOR,
    UNCHECKED,
    TALK,
    PLACE,
    FLAG,
    QUIET,
    ROLE
};

struct option {
    const char *name;
    enum kind kind;
    size_t at; /* of the field */
    int value; /* of a ROLE */
};

static const char *const talk_names[] = {"text", "json", "none"}; /* enum hvdc_talk */

/* A bit of `seen` for each. */
#define AT(field) offsetof(hvdc_options, field)

static const struct option known[] = {
    {"-o", TEXT, AT(output), 0},
    {"--mode", MODE, AT(mode), 0},
    {"--cut", CUT, AT(cut), 0},
    {"--gpu-share", SHARE, AT(gpu_share), 0},
    {"--npu-sums", SUMS, AT(npu_sums), 0},
    {"--gpu-block-s", SECONDS, AT(rates.gpu_block_s), 0},
    {"--npu-block-s", SECONDS, AT(rates.npu_block_s), 0},
    {"--decode-s", SECONDS, AT(rates.decode_s), 0},
    {"--policy", POLICY, AT(policy.policy), 0},
    {"--handoff-s", SECONDS, AT(policy.handoff_s), 0},
    {"--deadline-s", DURATION, AT(policy.deadline_s), 0},
    {"--deadline-from", SINCE, AT(policy.from_start), 0},
    {"--threads", COUNT, AT(threads), 0},
    {"--memory-mib", COUNT, AT(memory_mib), 0},
    {"--npu", PLACE, AT(npu), 0},
    {"--fastrpc", TEXT, AT(fastrpc), 0},
    {"--vtcm-kib", COUNT, AT(vtcm_kib), 0},
    {"--npu-check", UNCHECKED, AT(npu_unchecked), 0},
    {"--platform", TEXT, AT(platform), 0},
    {"--device", TEXT, AT(device), 0},
    {"--gpu-import", TEXT, AT(gpu_import), 0},
    {"--kernel-cache", TEXT, AT(kernel_cache), 0},
    {"--npu-cpus", TEXT, AT(npu_cpus), 0},
    {"--gpu-cpus", TEXT, AT(gpu_cpus), 0},
    {"--trace", TEXT, AT(trace), 0},
    {"--qnn-libraries", TEXT, AT(qnn_libraries), 0},
    {"--qnn-backend", TEXT, AT(qnn_backend), 0},
    {"--qnn-system", TEXT, AT(qnn_system), 0},
    {"--soc", COUNT, AT(soc), 0},
    {"--arch", COUNT, AT(arch), 0},
    {"--emulator", EMULATOR, AT(emulator), 0},
    {"--resume", FLAG, AT(resume), 0},
    {"--on-gpu-loss", LOSS, AT(stop_when_gpu_lost), 0},
    {"--on-stop", STOP, AT(abandon), 0},
    {"--gpu-silence-s", DURATION, AT(gpu_silence_s), 0},
    {"--npu-silence-s", SECONDS, AT(npu_silence_s), 0},
    {"--reader-silence-s", DURATION, AT(reader_silence_s), 0},
    {"--with-parent", COUNT, AT(parent), 0},
    {"--progress", TALK, AT(progress), 0},
    {"-q", QUIET, AT(progress), 0},
    {"--json", FLAG, AT(json), 0},
    {"--help", FLAG, AT(help), 0},
    {"-h", FLAG, AT(help), 0},
    {"--worker", ROLE, AT(role), HVDC_ROLE_WORKER},
    {"--timer", ROLE, AT(role), HVDC_ROLE_TIMER},
};

_Static_assert(sizeof known / sizeof *known <= 64, "a bit for each option");

static bool parse_count(const char *text, uint32_t *count) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || errno != 0 || value > UINT32_MAX) return false;
    *count = (uint32_t)value;
    return true;
}

static bool parse_seconds(const char *text, double *seconds) {
    char *end;
    *seconds = strtod(text, &end);
    return end != text && *end == 0 && isfinite(*seconds) && *seconds >= 0.0;
}

/* Index of a text among `count` others, or `count`. */
static int one_of(const char *text, const char *const *others, int count) {
    int i = 0;
    while (i < count && strcmp(text, others[i]) != 0) i++;
    return i;
}

static bool take_value(const struct option *option, const char *text, hvdc_options *options) {
    static const char *const losses[] = {"go-on", "stop"}, *const stops[] = {"finish", "abandon"},
                             *const yes_or_no[] = {"yes", "no"};
    void *field = (char *)options + option->at;
    switch (option->kind) {
        case TEXT: *(const char **)field = text; return true;
        case COUNT: return parse_count(text, field);
        case SECONDS: return parse_seconds(text, field);
        case DURATION: return parse_seconds(text, field) && *(double *)field > 0.0;
        case MODE: return hvdc_mode_of_name(text, field);
        case CUT:
            options->cut_is_given = strcmp(text, "auto") != 0;
            return !options->cut_is_given || parse_count(text, field);
        case SHARE:
            options->share_is_given = strcmp(text, "auto") != 0;
            return !options->share_is_given || (parse_seconds(text, field) && options->gpu_share <= 1.0);
        case SUMS: return hvdc_npu_sums_of_name(text, field);
        case POLICY: return hvdc_policy_of_name(text, field);
        case SINCE: {
            static const char *const points[] = {"start", "arrival"};
            int point = one_of(text, points, 2);
            options->policy.from_start = point == 0;
            return point < 2;
        }
        case LOSS: {
            int loss = one_of(text, losses, 2);
            options->stop_when_gpu_lost = loss == 1;
            return loss < 2;
        }
        case STOP: {
            int stop = one_of(text, stops, 2);
            options->abandon = stop == 1;
            return stop < 2;
        }
        case EMULATOR: {
            int emulator = one_of(text, yes_or_no, 2);
            options->emulator = emulator == 0 ? HVDC_EMULATOR_YES : HVDC_EMULATOR_NO;
            return emulator < 2;
        }
        case UNCHECKED: {
            int check = one_of(text, yes_or_no, 2);
            options->npu_unchecked = check == 1;
            return check < 2;
        }
        case PLACE: {
            static const char *const places[] = {"auto", "dsp", "portable"}; /* enum hvdc_npu_place */
            int place = one_of(text, places, 3);
            options->npu = (enum hvdc_npu_place)place;
            return place < 3;
        }
        case TALK: {
            int talk = one_of(text, talk_names, 3);
            options->progress = (enum hvdc_talk)talk;
            return talk < 3;
        }
        default: return false;
    }
}

static bool take_flag(const struct option *option, hvdc_options *options) {
    void *field = (char *)options + option->at;
    switch (option->kind) {
        case FLAG: *(bool *)field = true; return true;
        case QUIET: options->progress = HVDC_TALK_NOTHING; return true;
        case ROLE: options->role = (enum hvdc_role)option->value; return true;
        default: return false;
    }
}

static const struct option *find(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) return &known[i];
    return NULL;
}

static bool was_given(uint64_t seen, const char *name) { return (seen >> (find(name) - known) & 1u) != 0; }

static enum hvdc_npu_place place_here(bool shares) {
#if defined(__ANDROID__)
    return shares ? HVDC_NPU_PORTABLE : HVDC_NPU_DSP;
#else
    (void)shares;
    return HVDC_NPU_PORTABLE;
#endif
}

static bool check_policy(const hvdc_options *o, uint64_t seen, hvdc_failure *failure) {
    const enum hvdc_policy policy = o->policy.policy;
    const char *const name = hvdc_policy_name(policy);
    static const char *const of_deadline[] = {"--deadline-s", "--deadline-from"};
    if (o->mode != HVDC_MODE_HETERO && was_given(seen, "--policy"))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a policy chooses the cut of each video, and mode %s has none",
                         hvdc_mode_name(o->mode));
    if (policy != HVDC_POLICY_STATIC && was_given(seen, "--cut"))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "--cut has no effect with policy %s, which chooses each video's",
                         name);
    if (policy == HVDC_POLICY_STATIC && was_given(seen, "--handoff-s"))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "--handoff-s has no effect without a --policy that reckons with it");
    for (size_t i = 0; policy != HVDC_POLICY_DEADLINE && i < sizeof of_deadline / sizeof *of_deadline; i++)
        if (was_given(seen, of_deadline[i]))
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s has no effect without --policy deadline", of_deadline[i]);
    return policy != HVDC_POLICY_DEADLINE || was_given(seen, "--deadline-s") ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "policy deadline needs a deadline: give --deadline-s");
}

/* What belongs together. `seen`: bit i of an option known[i] that was given. */
static bool check(hvdc_options *o, uint64_t seen, hvdc_failure *failure) {
    const char *missing = NULL;
    bool gpu_rate = was_given(seen, "--gpu-block-s"), npu_rate = was_given(seen, "--npu-block-s");
    bool rate = gpu_rate || npu_rate || was_given(seen, "--decode-s");
    o->rates_are_given = gpu_rate && npu_rate;
    if (o->artifact == NULL)
        missing = "ARTIFACT";
    else if (o->role == HVDC_ROLE_OWNER && o->stream == NULL)
        missing = "STREAM";
    else if (o->role == HVDC_ROLE_OWNER && o->output == NULL)
        missing = "-o OUT";
    else if (o->role == HVDC_ROLE_OWNER && !was_given(seen, "--mode"))
        missing = "--mode";
    if (missing != NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s is missing; see hvdc_runner --help", missing);
    const bool cuts = o->mode == HVDC_MODE_HETERO, shares = o->mode == HVDC_MODE_TENSOR;
    if (!cuts && (was_given(seen, "--cut") || was_given(seen, "--decode-s") || (rate && !shares)))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a cut, and rates to find it with, have no effect in mode %s",
                         hvdc_mode_name(o->mode));
    if (!shares && was_given(seen, "--gpu-share"))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a share of the GPU has no effect in mode %s",
                         hvdc_mode_name(o->mode));
    if (!check_policy(o, seen, failure)) return false;
    if (o->share_is_given && rate)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "rates have no effect beside a given --gpu-share");
    if (o->cut_is_given && rate)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "rates have no effect beside a given --cut");
    if (o->npu == HVDC_NPU_AUTO) o->npu = place_here(shares);
    if (shares && o->npu == HVDC_NPU_DSP)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "mode %s needs --npu portable: an engine on the DSP shares no linear with the GPU",
                         hvdc_mode_name(o->mode));
    static const char *const of_dsp[] = {"--fastrpc", "--vtcm-kib", "--npu-check"};
    for (size_t i = 0; o->npu != HVDC_NPU_DSP && i < sizeof of_dsp / sizeof *of_dsp; i++)
        if (was_given(seen, of_dsp[i]))
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s has no effect without --npu dsp", of_dsp[i]);
    if (o->vtcm_kib > UINT32_MAX >> 10)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "--vtcm-kib %u is more than any DSP has", (unsigned)o->vtcm_kib);
    if (rate && !o->rates_are_given)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "rates belong together: give --gpu-block-s and --npu-block-s");
    static const char *const of_decoder[] = {"--qnn-backend", "--qnn-system", "--soc", "--arch", "--emulator"};
    for (size_t i = 0; o->qnn_libraries == NULL && i < sizeof of_decoder / sizeof *of_decoder; i++)
        if (was_given(seen, of_decoder[i]))
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s has no effect without --qnn-libraries", of_decoder[i]);
    return true;
}

bool hvdc_options_parse(int argc, char *const *argv, hvdc_options *options, hvdc_failure *failure) {
    uint64_t seen = 0;
    *options = (hvdc_options){.role = HVDC_ROLE_OWNER,
                              .policy = {.from_start = true},
                              .gpu_silence_s = HVDC_GPU_SILENCE_S,
                              .reader_silence_s = HVDC_READER_SILENCE_S};
    for (int i = 1; i < argc; i++) {
        const struct option *option = find(argv[i]);
        if (option == NULL && argv[i][0] == '-')
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "there is no option %s; see hvdc_runner --help", argv[i]);
        if (option == NULL) {
            const char **place = options->artifact == NULL ? &options->artifact : &options->stream;
            if (*place != NULL) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s is one argument too many", argv[i]);
            *place = argv[i];
            continue;
        }
        seen |= UINT64_C(1) << (option - known);
        if (take_flag(option, options)) continue;
        if (i + 1 == argc) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s needs a value", argv[i]);
        if (argv[++i][0] == 0)
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s does not take an empty value; see hvdc_runner --help",
                             option->name);
        if (!take_value(option, argv[i], options))
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s does not take %s; see hvdc_runner --help", option->name,
                             argv[i]);
    }
    return options->help || check(options, seen, failure);
}

void hvdc_options_for(enum hvdc_role role, const hvdc_options *options, const char *gpu_cpus, char threads[16],
                      char *argv[HVDC_ARGUMENTS_MAX]) {
    const char *list[HVDC_ARGUMENTS_MAX] = {"/proc/self/exe", role == HVDC_ROLE_WORKER ? "--worker" : "--timer",
                                            options->artifact};
    size_t n = 3;
    (void)snprintf(threads, 16, "%u", (unsigned)options->threads);
    list[n++] = "--threads", list[n++] = threads;
    list[n++] = "--progress", list[n++] = talk_names[options->progress];
    if (options->platform != NULL) list[n++] = "--platform", list[n++] = options->platform;
    if (options->device != NULL) list[n++] = "--device", list[n++] = options->device;
    if (options->gpu_import != NULL) list[n++] = "--gpu-import", list[n++] = options->gpu_import;
    if (options->kernel_cache != NULL) list[n++] = "--kernel-cache", list[n++] = options->kernel_cache;
    if (gpu_cpus != NULL) list[n++] = "--gpu-cpus", list[n++] = gpu_cpus;
    for (size_t i = 0; i <= n; i++) argv[i] = (char *)(uintptr_t)(i < n ? list[i] : NULL);
}
