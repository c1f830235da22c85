/* Files that can be made again: compiled programs, tuning results. A file is either whole or not there: it is written
 * beside its place and moved, and its contents carry their SHA-256. */
#ifndef HVDC_GPU_CACHE_H
#define HVDC_GPU_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVDC_CACHE_KEY_BYTES 65 /* hexadecimal digits and the final 0 */

/* The SHA-256 of texts, each with its end, as a key. */
void hvdc_cache_key(const char *const *texts, uint32_t count, char key[HVDC_CACHE_KEY_BYTES]);

/* The contents of DIRECTORY/PREFIX-KEY, to be freed; NULL if there is no such file, or one that is damaged. */
uint8_t *hvdc_cache_read(const char *directory, const char *prefix, const char *key, size_t *bytes);

/* Whether there is a sound one. */
bool hvdc_cache_has(const char *directory, const char *prefix, const char *key);

/* Whether it was kept. Makes the directory; not being able to keep something is not a failure. */
bool hvdc_cache_write(const char *directory, const char *prefix, const char *key, const void *data, size_t bytes);

#endif
