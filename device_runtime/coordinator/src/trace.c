#define _GNU_SOURCE

#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hvdc/json.h"

static const char *const LANES[] = {
    [HVDC_LANE_GPU] = "GPU",         [HVDC_LANE_NPU] = "NPU",       [HVDC_LANE_CPU] = "CPU",
    [HVDC_LANE_HANDOFF] = "handoff", [HVDC_LANE_DECODE] = "decode",
};

static const char *const ACTIVITIES[] = {
    [HVDC_DOES_LOAD] = "load",         [HVDC_DOES_PROJECT_TEXT] = "project text",
    [HVDC_DOES_SET_TEXT] = "set text", [HVDC_DOES_EMBED] = "embed",
    [HVDC_DOES_BLOCKS] = "blocks",     [HVDC_DOES_ADVANCE] = "head, Euler",
    [HVDC_DOES_WAIT] = "handoff",      [HVDC_DOES_DECODE] = "decode",
    [HVDC_DOES_KEEP] = "keep result",  [HVDC_DOES_SLICE] = "slice",
    [HVDC_DOES_JOIN] = "join",
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

bool hvdc_trace_open(hvdc_trace *trace, const char *path, uint64_t origin_ns, hvdc_failure *failure) {
    *trace = (hvdc_trace){.path = path, .origin_ns = origin_ns};
    if (path == NULL) return true;
    /* Who reads a pipe could hold the stream up, already by not opening it. */
    struct stat status;
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    const bool is_pipe = fd >= 0 && fstat(fd, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
    trace->file = fd < 0 || is_pipe ? NULL : fdopen(fd, "w");
    if (trace->file == NULL) {
        const int error = errno;
        if (fd >= 0) (void)close(fd);
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "the trace %s cannot be written: %s", path,
                         is_pipe ? "it is a pipe, and a trace is a file" : strerror(error));
    }
    (void)fputs("[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"hvdc stream\"}}",
                trace->file);
    for (size_t lane = 1; lane < COUNT(LANES); lane++) {
        (void)fprintf(trace->file,
                      ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%zu,\"args\":{\"name\":\"%s\"}}",
                      lane, LANES[lane]);
        (void)fprintf(trace->file,
                      ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":1,\"tid\":%zu,\"args\":{\"sort_index\":"
                      "%zu}}",
                      lane, lane);
    }
    return true;
}

/* Chrome counts in microseconds. */
static double us(const hvdc_trace *trace, uint64_t ns) { return ((double)ns - (double)trace->origin_ns) / 1e3; }

void hvdc_trace_span(hvdc_trace *trace, const hvdc_span_of_time *span) {
    if (trace->file == NULL || span->lane >= COUNT(LANES) || span->activity >= COUNT(ACTIVITIES) ||
        LANES[span->lane] == NULL || ACTIVITIES[span->activity] == NULL)
        return;
    (void)fprintf(trace->file,
                  ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
                  "\"args\":{\"video\":%u,\"position\":%u,\"count\":%u}}",
                  ACTIVITIES[span->activity], LANES[span->lane], (unsigned)span->lane, us(trace, span->start_ns),
                  (double)(span->end_ns - span->start_ns) / 1e3, (unsigned)span->video, (unsigned)span->position,
                  (unsigned)span->count);
}

void hvdc_trace_note(hvdc_trace *trace, uint64_t at_ns, const char *text) {
    if (trace->file == NULL) return;
    (void)fputs(",\n{\"name\":", trace->file);
    hvdc_json_text(trace->file, text);
    (void)fprintf(trace->file, ",\"ph\":\"i\",\"s\":\"g\",\"pid\":1,\"tid\":%d,\"ts\":%.3f}", (int)HVDC_LANE_HANDOFF,
                  us(trace, at_ns));
    (void)fflush(trace->file);
}

bool hvdc_trace_close(hvdc_trace *trace, hvdc_failure *failure) {
    if (trace->file == NULL) return true;
    (void)fputs("\n]\n", trace->file);
    bool whole = !ferror(trace->file);
    whole = fclose(trace->file) == 0 && whole;
    trace->file = NULL;
    return whole || hvdc_fail(failure, HVDC_FAILURE_FILE, "the trace %s is not whole: is the disk full?", trace->path);
}
