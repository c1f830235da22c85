/* The command line of hvdc_runner. */
#ifndef HVDC_RUNNER_OPTIONS_H
#define HVDC_RUNNER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/coordinator.h"
#include "hvdc/npu_sums.h"
#include "hvdc/policy.h"

#define HVDC_ARGUMENTS_MAX 24u

/* A block of the largest model takes seconds, and a slow phone's first one minutes. */
#define HVDC_GPU_SILENCE_S 300.0

#define HVDC_READER_SILENCE_S 30.0

enum hvdc_role {
    HVDC_ROLE_OWNER = 0,
    HVDC_ROLE_WORKER, /* serves an owner */
    HVDC_ROLE_TIMER   /* times the GPU's blocks for an owner that looks for a cut */
};

/* Where the NPU's executor runs. */
enum hvdc_npu_place {
    HVDC_NPU_AUTO = 0, /* becomes one of the others: the DSP on Android, else portable */
    HVDC_NPU_DSP,
    HVDC_NPU_PORTABLE
};

enum hvdc_emulator { HVDC_EMULATOR_AS_BUILT = 0, HVDC_EMULATOR_YES, HVDC_EMULATOR_NO };

enum hvdc_talk { HVDC_TALK_TEXT = 0, HVDC_TALK_JSON, HVDC_TALK_NOTHING };

/* Texts are those of argv. */
typedef struct hvdc_options {
    enum hvdc_role role;
    const char *artifact, *stream, *output; /* directories; the last two the owner's alone */
    enum hvdc_mode mode;
    bool cut_is_given;
    uint32_t cut;
    bool share_is_given;
    double gpu_share;
    enum hvdc_npu_sums npu_sums;
    bool rates_are_given;
    hvdc_rates rates;
    hvdc_policy_options policy; /* its rates are those above, or timed */
    uint32_t threads;           /* 0: one for each processor that this process may use */
    uint32_t memory_mib;        /* at most, of what hvdc_memory_is_there counts; 0: what the system has available */
    enum hvdc_npu_place npu;
    const char *fastrpc;             /* its library; NULL: libcdsprpc.so as the system finds it */
    uint32_t vtcm_kib;               /* of the DSP; 0: what is free, up to what is used */
    bool npu_unchecked;              /* the DSP's units are not tested when a run begins */
    const char *platform, *device;   /* of OpenCL; NULL: any */
    const char *gpu_import;          /* a name of hvdc_gpu_import_name; NULL: "any" */
    const char *kernel_cache;        /* directory of compiled programs; NULL: nothing is kept */
    const char *npu_cpus, *gpu_cpus; /* NULL: all that this process may use */
    const char *trace;
    const char *qnn_libraries;            /* directory; NULL: latents are not decoded */
    const char *qnn_backend, *qnn_system; /* files in it; NULL: as hvdc/decoder.h has them */
    uint32_t soc, arch;                   /* what this device is; 0: not known */
    enum hvdc_emulator emulator;          /* whether the libraries are those that emulate the NPU on x86 */
    bool resume, stop_when_gpu_lost, abandon, json, help;
    double gpu_silence_s;    /* until a GPU's process that has work and says nothing is given up */
    double npu_silence_s;    /* until a call of the NPU's engine that does not return ends this process; 0: never */
    double reader_silence_s; /* until a report that nobody reads is given up */
    uint32_t parent;         /* a process with which this one ends; 0: none */
    enum hvdc_talk progress;
} hvdc_options;

extern const char *const hvdc_options_help[]; /* parts, to NULL */

/* Fails with kind USAGE and a sentence. */
bool hvdc_options_parse(int argc, char *const *argv, hvdc_options *options, hvdc_failure *failure);

/* The arguments of a process that takes `role` for an owner with these options; NULL-terminated. `threads` is scratch for
 * their text. `gpu_cpus` takes the place of the options'. */
void hvdc_options_for(enum hvdc_role role, const hvdc_options *options, const char *gpu_cpus, char threads[16],
                      char *argv[HVDC_ARGUMENTS_MAX]);

#endif
