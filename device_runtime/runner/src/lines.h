/* Text to a descriptor, which nobody who does not read it can hold up.
 *
 * A thread of its own writes, and waits where it must; who says something only leaves it there. The descriptor's flags
 * stay as they are: others have it too, and what does not block would not block for them either. Written are whole lines,
 * as many as a pipe takes in one piece, so that lines of several processes do not mix. */
#ifndef HVDC_RUNNER_LINES_H
#define HVDC_RUNNER_LINES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct hvdc_lines hvdc_lines;

/* NULL if there is no memory, or no thread, for it. `closed` (or NULL) is called, by the thread, when there is nobody any
 * more who could read. SIGPIPE is to be ignored. */
hvdc_lines *hvdc_lines_open(int fd, void (*closed)(void));

/* False, and nothing is left, if more than `room_bytes` would wait then, or nobody can read any more. */
bool hvdc_lines_put(hvdc_lines *lines, const char *text, size_t bytes, size_t room_bytes);

/* Waits until everything is written, or nothing was for `patience_s`. Returns 0, ETIMEDOUT (its thread stays, and the
 * process is to end), or what write failed with. NULL is allowed. */
int hvdc_lines_close(hvdc_lines *lines, double patience_s);

#endif
