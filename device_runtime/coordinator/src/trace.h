/* A stream's trace in Chrome's JSON array format, which Perfetto reads too: written as it happens, so that a stream that
 * dies leaves one that can be read. */
#ifndef HVDC_TRACE_H
#define HVDC_TRACE_H

#include <stdio.h>

#include "executor.h"

typedef struct hvdc_trace {
    FILE *file; /* NULL: none is wanted */
    const char *path;
    uint64_t origin_ns;
} hvdc_trace;

/* `path` NULL: every other call does nothing. */
bool hvdc_trace_open(hvdc_trace *trace, const char *path, uint64_t origin_ns, hvdc_failure *failure);
void hvdc_trace_span(hvdc_trace *trace, const hvdc_span_of_time *span);
/* A moment with a sentence. */
void hvdc_trace_note(hvdc_trace *trace, uint64_t at_ns, const char *text);
/* Fails if not all of it could be written. */
bool hvdc_trace_close(hvdc_trace *trace, hvdc_failure *failure);

#endif
