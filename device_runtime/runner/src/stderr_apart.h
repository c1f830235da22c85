/* Standard error in two: one for this program's own lines, which wait for whoever reads, and one that waits for nobody, for
 * what libraries print. */
#ifndef HVDC_RUNNER_STDERR_APART_H
#define HVDC_RUNNER_STDERR_APART_H

/* From here on what is printed on standard error, and on standard output, which is another name of it, is left out when
 * nobody reads and a pipe or terminal is full: a driver that prints cannot stop the thread that called it, nor can it in
 * processes that inherit this. Returns a descriptor for lines that are to wait. What is no pipe and no terminal is opened
 * no second time (a file always has room; a socket waits, as it did). */
int hvdc_stderr_apart(void);

#endif
