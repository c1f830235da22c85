/* For Hexagon, where the compiler comes without a C library: what the runtime uses of <stdlib.h>. */
#ifndef HVDC_LIBC_STDLIB_H
#define HVDC_LIBC_STDLIB_H

#include <stddef.h>

void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *aligned_alloc(size_t alignment, size_t bytes);
void free(void *memory);
_Noreturn void exit(int status);
_Noreturn void abort(void);
unsigned long strtoul(const char *text, char **end, int base);

#endif
