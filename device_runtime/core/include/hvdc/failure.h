/* What went wrong while something ran, as a sentence for a person. Faults of an artifact have codes of their own:
 * hvdc/artifact.h. */
#ifndef HVDC_FAILURE_H
#define HVDC_FAILURE_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVDC_FAILURE_MESSAGE_BYTES 512

enum hvdc_failure_kind {
    HVDC_FAILURE_NONE = 0,
    HVDC_FAILURE_USAGE,    /* what was asked for is not possible with this artifact */
    HVDC_FAILURE_ARTIFACT, /* the artifact cannot be used */
    HVDC_FAILURE_DEVICE,   /* no device, or one that computes wrong values or refuses */
    HVDC_FAILURE_MEMORY,   /* it does not fit */
    HVDC_FAILURE_PEER,     /* the other process is gone, or says something else than it should */
    HVDC_FAILURE_FILE      /* a file cannot be read or written */
};

typedef struct hvdc_failure {
    enum hvdc_failure_kind kind;
    char message[HVDC_FAILURE_MESSAGE_BYTES]; /* what, where, why, what to do; cut off at its size */
} hvdc_failure;

/* Fills `failure`, which may be NULL, and returns false, so that a function can `return hvdc_fail(…)`. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
bool hvdc_fail(hvdc_failure *failure, enum hvdc_failure_kind kind, const char *format, ...);

/* A static analyser sees one file at a time: what it may know of the others. */
#if defined(__clang_analyzer__)
#define hvdc_fail(...) ((void)hvdc_fail(__VA_ARGS__), false)
#endif

#ifdef __cplusplus
}
#endif

#endif
