#include "error.h"

#include <stdarg.h>
#include <stdio.h>

const char *hvdc_code_name(enum hvdc_code code) {
    switch (code) {
#define CASE(name, number, meaning) \
    case HVDC_E_##name: return #name;
        HVDC_CODES(CASE)
#undef CASE
    }
    return "UNKNOWN";
}

const char *hvdc_code_meaning(enum hvdc_code code) {
    switch (code) {
#define CASE(name, number, meaning) \
    case HVDC_E_##name: return meaning;
        HVDC_CODES(CASE)
#undef CASE
    }
    return "unknown fault";
}

enum hvdc_code hvdc_refuse(hvdc_error *error, enum hvdc_code code, const char *file, const char *format, ...) {
    if (error != NULL) {
        error->code = code;
        (void)snprintf(error->file, sizeof error->file, "%s", file);
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
    }
    return code;
}
