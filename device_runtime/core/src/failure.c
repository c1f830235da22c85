#include "hvdc/failure.h"

#include <stdarg.h>
#include <stdio.h>

bool(hvdc_fail)(hvdc_failure *failure, enum hvdc_failure_kind kind, const char *format, ...) {
    if (failure != NULL) {
        va_list arguments;
        va_start(arguments, format);
        failure->kind = kind;
        (void)vsnprintf(failure->message, sizeof failure->message, format, arguments);
        va_end(arguments);
    }
    return false;
}
