/* Facts of hvdc_probe as lines of JSON: begin, fields, end. */
#ifndef HVDC_PROBE_LINES_H
#define HVDC_PROBE_LINES_H

#include <stdbool.h>
#include <stdint.h>

/* Facts alone go to standard output: libraries print there too, and it is another name of standard error from now on. */
bool probe_lines_open(int version);
bool probe_lines_close(void);

void begin(const char *fact);
void text(const char *name, const char *value);
void number(const char *name, uint64_t value);
void yes_no(const char *name, bool value);
/* The line is out before anything else happens. */
void end(void);

/* What will be tried next. */
void trying(const char *what, uint64_t bytes);

#endif
