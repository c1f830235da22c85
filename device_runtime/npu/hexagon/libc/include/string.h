/* For Hexagon, where the compiler comes without a C library: what the runtime uses of <string.h>. */
#ifndef HVDC_LIBC_STRING_H
#define HVDC_LIBC_STRING_H

#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
int memcmp(const void *left, const void *right, size_t bytes);
void *memchr(const void *in, int value, size_t bytes);
size_t strlen(const char *text);
int strcmp(const char *left, const char *right);
int strncmp(const char *left, const char *right, size_t bytes);
char *strchr(const char *text, int value);

#endif
