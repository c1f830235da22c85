/* Filling in struct hvdc_error. */
#ifndef HVDC_ERROR_H
#define HVDC_ERROR_H

#include "hvdc/artifact.h"

#if defined(__GNUC__)
#define HVDC_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define HVDC_PRINTF(text, first)
#endif

/* Fill `error`, which may be NULL, and return `code`. */
enum hvdc_code hvdc_refuse(hvdc_error *error, enum hvdc_code code, const char *file, const char *format, ...)
    HVDC_PRINTF(4, 5);

#endif
