/* The one thing of JSON that needs care when it is written by hand. */
#ifndef HVDC_JSON_H
#define HVDC_JSON_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A string in quotes; control characters, quotes and backslashes are escaped. Bytes that are no UTF-8 are the caller's
 * affair, and so is an error of the file. */
void hvdc_json_text(FILE *file, const char *text);

#ifdef __cplusplus
}
#endif

#endif
