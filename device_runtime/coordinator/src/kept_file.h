/* Files that a stream leaves behind, results and frames: each appears whole and durable or not at all, and says in a
 * line of JSON what it is. That text ends with two SHA-256 in hex: "sha256", of the bytes behind the header, and
 * "check", of the text before it, so that a reader tells a file that is damaged from a whole one of something else. */
#ifndef HVDC_KEPT_FILE_H
#define HVDC_KEPT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sha256.h"

#define HVDC_HEX_BYTES (2u * HVDC_SHA256_BYTES + 1u)

void hvdc_hex_of(const uint8_t digest[HVDC_SHA256_BYTES], char hex[HVDC_HEX_BYTES]);
void hvdc_sha256_of(const void *data, size_t bytes, uint8_t digest[HVDC_SHA256_BYTES]);

/* Adds ,"check":"…" to a text of `bytes` that ends with the member "sha256"; returns its new length, or 0 if it does not
 * fit into `room`. */
size_t hvdc_seal(char *text, size_t bytes, size_t room);

/* Whether a text, which ends with a zero, is as it was sealed, and of bytes with this digest. */
bool hvdc_is_sealed(const char *text, const uint8_t digest[HVDC_SHA256_BYTES]);

/* A file that is being written under a hidden name. Functions fail with errno. */
typedef struct hvdc_kept_file {
    int directory, fd;
    char name[64], partial[80];
} hvdc_kept_file;

#define HVDC_NO_KEPT_FILE ((hvdc_kept_file){.directory = -1, .fd = -1})

/* Begins DIRECTORY/NAME, in place of an unfinished one. */
bool hvdc_kept_begin(const char *directory, const char *name, hvdc_kept_file *file);
bool hvdc_kept_write(const hvdc_kept_file *file, const void *data, size_t bytes);

/* Writes over the first bytes. */
bool hvdc_kept_rewrite(const hvdc_kept_file *file, const void *data, size_t bytes);

/* It is there, durably; else nothing of it is left. */
bool hvdc_kept_end(hvdc_kept_file *file);

/* Nothing of it is left. One that was not begun, or has ended, is allowed. Keeps errno. */
void hvdc_kept_drop(hvdc_kept_file *file);

/* Opens DIRECTORY/NAME for reading; -1 with errno. */
int hvdc_kept_open(const char *directory, const char *name);

/* Whether anything has that name. */
bool hvdc_kept_is_there(const char *directory, const char *name);

/* Reads until `bytes` are there or the file ends; how many, or -1 with errno. */
ptrdiff_t hvdc_read_fully(int fd, void *data, size_t bytes);

#endif
