#include "bench_options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench_series.h"
#include "hvdc/pool.h"

const char BENCH_HELP[] =
    "usage: hvdc_bench ARTIFACT [options]\n"
    "\n"
    "Measures seconds per block of the NPU's and of the GPU's engine on this machine: each alone, then both at once;\n"
    "of the semantic and of the detail expert; what a prompt's text takes; and, with QNN's libraries, what decoding a\n"
    "video takes, alone and beside the GPU's blocks. Videos are not made.\n"
    "\n"
    "  --engine both|npu|gpu what to measure (both)\n"
    "  --tokens N            tokens of a block; the artifact's own number\n"
    "  --warm-up N           blocks of each expert that are executed before any is counted (1)\n"
    "  --repeat N            blocks of each expert that are counted, 1 to 1000 (5)\n"
    "  --threads N           threads of the NPU's engine and of the CPU; one for each processor\n"
    "  --npu auto|dsp|portable\n"
    "                        where the NPU's engine is: on the DSP of a Snapdragon, or on processors (auto: on the "
    "DSP\n"
    "                        on Android, else on processors)\n"
    "  --npu-sums fast|exact how its GEMMs add (fast)\n"
    "  --fastrpc LIBRARY     FastRPC's library, a name or a path (libcdsprpc.so)\n"
    "  --vtcm-kib N          so much of the DSP's VTCM, or a refusal; otherwise what is free of what a block uses\n"
    "  --weights shared|mapped\n"
    "                        both engines read one copy in shared memory, as in hvdc_runner, or the artifact's files\n"
    "                        where they are mapped (shared)\n"
    "  --qnn-libraries DIR   decode too, with QNN's libraries in DIR\n"
    "  --decode-repeat N     videos that are decoded, 1 to 1000 (1)\n"
    "  --soc N  --arch N     what this device is, as QNN counts: binaries for another one are refused\n"
    "  --spread-limit X      (largest - smallest) / median of a series above this is not steady (0.1)\n"
    "  --platform TEXT  --device TEXT  --kernel-cache DIR\n"
    "                        OpenCL platform and device, by index or a part of the name; where kernels are kept\n"
    "  --answer              measure nothing: execute the blocks whose results ARTIFACT/runtime/answer.bin holds, and\n"
    "                        compare; with --npu-sums exact every bit, else within the limits that it holds\n"
    "  --progress            a line of JSON on standard error for each piece of work that is done\n"
    "  --json                the report as JSON on standard output, in place of a table\n"
    "\n"
    "Exit statuses: 0 measured; 3 measured, but not steady; 1 failure; 2 usage; 4 an artifact that cannot be used;\n"
    "5 no device; 6 a result is not the stored answer.\n";

static bool count_of(const char *text, uint32_t least, uint32_t most, uint32_t *count) {
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || errno != 0 || value < least || value > most) return false;
    *count = (uint32_t)value;
    return true;
}

struct count {
    const char *name;
    size_t at; /* of the field */
    uint32_t least, most;
};

struct text {
    const char *name;
    size_t at;
};

static const struct count COUNTS[] = {
    {"--tokens", offsetof(bench_options, tokens), 1, UINT32_MAX},
    {"--warm-up", offsetof(bench_options, warm_up), 0, BENCH_REPEAT_MAX},
    {"--repeat", offsetof(bench_options, repeat), 1, BENCH_REPEAT_MAX},
    {"--decode-repeat", offsetof(bench_options, decode_repeat), 1, BENCH_REPEAT_MAX},
    {"--threads", offsetof(bench_options, threads), 0, HVDC_POOL_MAX_THREADS},
    {"--vtcm-kib", offsetof(bench_options, vtcm_kib), 0, UINT32_MAX >> 10},
    {"--soc", offsetof(bench_options, soc), 0, UINT32_MAX},
    {"--arch", offsetof(bench_options, arch), 0, UINT32_MAX},
};

static const struct text TEXTS[] = {
    {"--platform", offsetof(bench_options, platform)},           {"--device", offsetof(bench_options, device)},
    {"--kernel-cache", offsetof(bench_options, kernel_cache)},   {"--fastrpc", offsetof(bench_options, fastrpc)},
    {"--qnn-libraries", offsetof(bench_options, qnn_libraries)},
};

static bool on_a_dsp(const char *place, bool *dsp) {
#ifdef __ANDROID__
    *dsp = strcmp(place, "portable") != 0;
#else
    *dsp = strcmp(place, "dsp") == 0;
#endif
    return strcmp(place, "auto") == 0 || strcmp(place, "dsp") == 0 || strcmp(place, "portable") == 0;
}

/* 1: taken; 0: the value is none of this option; -1: there is no such option. */
static int take(bench_options *o, const char *name, const char *value) {
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++)
        if (strcmp(name, COUNTS[i].name) == 0)
            return value != NULL &&
                   count_of(value, COUNTS[i].least, COUNTS[i].most, (uint32_t *)(void *)((char *)o + COUNTS[i].at));
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++)
        if (strcmp(name, TEXTS[i].name) == 0) {
            *(const char **)(void *)((char *)o + TEXTS[i].at) = value;
            return value != NULL && *value != 0;
        }
    if (strcmp(name, "--engine") == 0) {
        o->npu = value != NULL && strcmp(value, "gpu") != 0;
        o->gpu = value != NULL && strcmp(value, "npu") != 0;
        return o->npu != o->gpu || (value != NULL && strcmp(value, "both") == 0);
    }
    if (strcmp(name, "--npu") == 0) return value != NULL && on_a_dsp(value, &o->dsp);
    if (strcmp(name, "--weights") == 0) {
        o->mapped = value != NULL && strcmp(value, "mapped") == 0;
        return o->mapped || (value != NULL && strcmp(value, "shared") == 0);
    }
    if (strcmp(name, "--npu-sums") == 0) return value != NULL && hvdc_npu_sums_of_name(value, &o->sums);
    if (strcmp(name, "--spread-limit") == 0) {
        char *end;
        o->spread_limit = value == NULL ? -1.0 : strtod(value, &end);
        return value != NULL && end != value && *end == 0 && isfinite(o->spread_limit) && o->spread_limit >= 0.0;
    }
    return -1;
}

static bool is_flag(bench_options *o, const char *name) {
    bool *const flag = strcmp(name, "--json") == 0       ? &o->json
                       : strcmp(name, "--help") == 0     ? &o->help
                       : strcmp(name, "--progress") == 0 ? &o->progress
                       : strcmp(name, "--answer") == 0   ? &o->answer
                                                         : NULL;
    if (flag != NULL) *flag = true;
    return flag != NULL;
}

bool bench_options_parse(int argc, char *const *argv, bench_options *o, hvdc_failure *failure) {
    *o = (bench_options){.npu = true, .gpu = true, .warm_up = 1, .repeat = 5, .decode_repeat = 1, .spread_limit = 0.1};
    (void)on_a_dsp("auto", &o->dsp);
    for (int i = 1; i < argc; i++) {
        if (is_flag(o, argv[i])) continue;
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        const int taken = argv[i][0] == '-' ? take(o, argv[i], value) : -1;
        if (taken >= 0 && value == NULL) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s needs a value", argv[i]);
        if (taken == 0)
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s does not take %s; see hvdc_bench --help", argv[i], value);
        if (taken == 1) {
            i++;
        } else if (argv[i][0] == '-' || o->artifact != NULL) {
            return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                             "%s is no option, or one argument too many; see hvdc_bench --help", argv[i]);
        } else {
            o->artifact = argv[i];
        }
    }
    if (!o->help && o->artifact == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "ARTIFACT is missing; see hvdc_bench --help");
    if (o->answer && (o->tokens != 0u || o->qnn_libraries != NULL))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s has no effect with --answer, which measures nothing",
                         o->tokens != 0u ? "--tokens" : "--qnn-libraries");
    return o->help || o->qnn_libraries == NULL || o->npu ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "--qnn-libraries has no effect with --engine gpu: the NPU decodes");
}
