/* What the owner says: progress on standard error, the report on standard output.
 *
 * Standard output carries the report and nothing else: libraries print, too (Qualcomm's does when it is loaded), so that
 * what they print goes to standard error, and the report to a stream of its own. */
#ifndef HVDC_RUNNER_REPORT_H
#define HVDC_RUNNER_REPORT_H

#include <stdio.h>

#include "clips.h"
#include "hvdc/coordinator.h"
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
    const hvdc_clips_facts *decoder; /* NULL: latents are not decoded */
    hvdc_stream_report report;
} hvdc_outcome;

/* Standard error is shared with the other process: whole lines only. To be called first. */
void hvdc_say_in_lines(void);

/* Standard output, which becomes another name of standard error; NULL with a failure. To be closed by the caller. */
FILE *hvdc_take_standard_output(hvdc_failure *failure);

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

/* The report as JSON or as lines; false if it cannot be written. */
bool hvdc_print_outcome(FILE *out, const hvdc_outcome *outcome);

/* A failure as a line on standard error, and with --json in the report's place as {"error": {"kind", "what"}}. */
void hvdc_print_failure(FILE *out, const hvdc_options *options, const hvdc_failure *failure);

#endif
