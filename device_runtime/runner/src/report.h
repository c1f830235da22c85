/* What the owner says: progress on standard error, the report on standard output.
 *
 * Standard output carries the report and nothing else: libraries print, too (Qualcomm's does when it is loaded), so that
 * what they print goes to standard error, and the report to a stream of its own.
 *
 * Whoever does not read them holds nothing up: between hvdc_say_aside and hvdc_say_no_more, progress for which there is no
 * room is left out (how many lines, is said when there is room again, and in the report), and the report is waited for
 * until nobody has read any of it for options->reader_silence_s. */
#ifndef HVDC_RUNNER_REPORT_H
#define HVDC_RUNNER_REPORT_H

#include <stdio.h>

#include "clips.h"
#include "hvdc/coordinator.h"
#include "engines.h"
#include "options.h"

/* Where the cut comes from. */
enum hvdc_cut_source { HVDC_CUT_NONE = 0, HVDC_CUT_GIVEN, HVDC_CUT_FROM_RATES, HVDC_CUT_MEASURED };

/* Bytes that a run needs, as far as they follow from the artifact. */
typedef struct hvdc_forecast {
    uint64_t weights_bytes, slot_bytes, npu_engine_bytes, gpu_engine_bytes;
    uint64_t decoder_bytes; /* hvdc_clips_facts.forecast_bytes; 0 without a decoder */
} hvdc_forecast;

typedef struct hvdc_outcome {
    const hvdc_options *options;
    hvdc_trajectory trajectory;
    uint32_t videos;
    bool is_placed; /* `cut` or `gpu_share`: they are still to be timed otherwise */
    uint32_t cut;
    double gpu_share;
    hvdc_policy_options policy;      /* with one, `cut` is the best by the rates that it begins with */
    enum hvdc_cut_source cut_source; /* or of the share; NONE where there is neither */
    hvdc_rates rates;                /* with sources FROM_RATES and MEASURED */
    uint64_t weights_bytes, host_bytes;
    const char *weights_kind;
    char npu[HVDC_NPU_TEXT_BYTES];                        /* what its blocks run on */
    uint64_t npu_weights_copied_bytes, npu_hidden_copied; /* hvdc_npu_copies */
    uint32_t npu_checks_failed;                           /* of the DSP's self-test */
    const hvdc_clips_facts *decoder;                      /* NULL: latents are not decoded */
    hvdc_forecast forecast;
    hvdc_stream_report report;
} hvdc_outcome;

/* Whether any of the GPU's is opened: not in mode npu, nor where a cut or a share, as far as they are known, leave it
 * without work. */
bool hvdc_outcome_needs_gpu(const hvdc_outcome *outcome);

/* Standard error is shared with the other process: whole lines only. To be called first. */
void hvdc_say_in_lines(void);

/* Standard output, which becomes another name of standard error; NULL with a failure. To be closed by the caller. */
FILE *hvdc_take_standard_output(hvdc_failure *failure);
/* With `stops`, standard error's being closed by whoever read it is SIGTERM for this process. What libraries print waits
 * for no reader any more (stderr_apart.h). */
void hvdc_say_aside(bool stops);

/* What was said is written, unless nobody reads it for `patience_s`. To be called before the process ends. */
#define HVDC_PROGRESS_PATIENCE_S 2.0
void hvdc_say_no_more(double patience_s);

/* A line of progress, as the options want it; in JSON {"event": …, "text": …}. */
void hvdc_say(const hvdc_options *options, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The outcome's cut or share, where it comes from, and rates; in JSON event "cut". */
void hvdc_say_cut(const hvdc_outcome *outcome);

/* Whether the GPU reads the one copy of the weights or has made its own; nothing in runs without it. Event "note". */
void hvdc_say_weights_use(const hvdc_outcome *outcome);

/* hvdc_stream_io's; the context is a hvdc_speaker. */
typedef struct hvdc_speaker {
    const hvdc_options *options;
    const hvdc_trajectory *trajectory;
    double last_s; /* when it last said how far a video is, or its decoding */
} hvdc_speaker;

void hvdc_say_progress(void *speaker, const hvdc_progress *progress);

/* The report as JSON or as lines; false, and said, if it is not written to its end. */
bool hvdc_print_outcome(FILE *out, const hvdc_outcome *outcome);

/* A failure as a line on standard error. */
void hvdc_say_failure(const hvdc_options *options, const hvdc_failure *failure);

/* The same, and with --json in the report's place as {"error": {"kind", "what"}}. */
void hvdc_print_failure(FILE *out, const hvdc_options *options, const hvdc_failure *failure);

#endif
