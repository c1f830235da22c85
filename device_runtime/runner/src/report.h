/* What the owner says: progress on standard error, the report on standard output. */
#ifndef HVDC_RUNNER_REPORT_H
#define HVDC_RUNNER_REPORT_H

#include "hvdc/coordinator.h"
#include "engines.h"
#include "options.h"

/* Where the cut comes from. */
enum hvdc_cut_source { HVDC_CUT_NONE = 0, HVDC_CUT_GIVEN, HVDC_CUT_FROM_RATES, HVDC_CUT_MEASURED };

typedef struct hvdc_outcome {
    const hvdc_options *options;
    hvdc_trajectory trajectory;
    uint32_t videos;
    uint32_t cut;
    double gpu_share;
    enum hvdc_cut_source cut_source; /* or of the share; NONE where there is neither */
    hvdc_rates rates;                /* with sources FROM_RATES and MEASURED */
    uint64_t weights_bytes, host_bytes;
    const char *weights_kind;
    char npu[HVDC_NPU_TEXT_BYTES];                        /* what its blocks run on */
    uint64_t npu_weights_copied_bytes, npu_hidden_copied; /* hvdc_npu_copies */
    hvdc_stream_report report;
} hvdc_outcome;

/* Standard error is shared with the other process: whole lines only. To be called first. */
void hvdc_say_in_lines(void);

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
    double last_s; /* when it last said how far a video is */
} hvdc_speaker;

void hvdc_say_progress(void *speaker, const hvdc_progress *progress);

/* The report as JSON or as lines; false if standard output cannot be written. */
bool hvdc_print_outcome(const hvdc_outcome *outcome);

/* A failure as a line on standard error, and with --json on standard output as {"error": {"kind", "what"}}. */
void hvdc_print_failure(const hvdc_options *options, const hvdc_failure *failure);

#endif
