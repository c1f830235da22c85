#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

#define LOG_BYTES (16u << 10)

static const char PREFIX[] = "program";

/* The first line of the log that says "error", else its first line. */
static bool fail_with_log(hvdc_device *d, cl_program program, const char *options, cl_int code, hvdc_failure *failure) {
    char *log = calloc(LOG_BYTES, 1);
    const char *line = "the compiler says nothing";
    if (log != NULL &&
        d->cl.clGetProgramBuildInfo(program, d->device, CL_PROGRAM_BUILD_LOG, LOG_BYTES - 1, log, NULL) == CL_SUCCESS &&
        log[0] != 0) {
        char *error = strstr(log, "error");
        while (error != NULL && error > log && error[-1] != '\n') {
            --error;
        }
        line = error == NULL ? log : error;
        log[(size_t)(line - log) + strcspn(line, "\n")] = 0;
    }
    hvdc_fail(failure, HVDC_FAILURE_DEVICE, "%s does not compile the kernels with '%s' (code %d): %.300s", d->name,
              options, (int)code, line);
    free(log);
    return false;
}

static cl_program from_cache(hvdc_device *d, const char *key, const char *options) {
    size_t bytes = 0;
    uint8_t *binary = hvdc_cache_read(d->cache_directory, PREFIX, key, &bytes);
    if (binary == NULL) {
        return NULL;
    }
    const unsigned char *binaries = binary;
    cl_int code = CL_SUCCESS, status = CL_SUCCESS;
    cl_program program = d->cl.clCreateProgramWithBinary(d->context, 1, &d->device, &bytes, &binaries, &status, &code);
    free(binary);
    if (code != CL_SUCCESS || program == NULL) {
        return NULL;
    }
    if (status != CL_SUCCESS || d->cl.clBuildProgram(program, 1, &d->device, options, NULL, NULL) != CL_SUCCESS) {
        d->cl.clReleaseProgram(program);
        return NULL;
    }
    return program;
}

static void key_of(const hvdc_device *d, const hvdc_sources *s, char key[HVDC_CACHE_KEY_BYTES]) {
    const char *texts[4 + sizeof s->texts / sizeof s->texts[0]] = {d->platform_name, d->name, d->driver, s->options};
    memcpy(texts + 4, s->texts, s->count * sizeof *s->texts);
    hvdc_cache_key(texts, 4 + s->count, key);
}

void hvdc_program_keep(hvdc_device *d, const hvdc_sources *s, cl_program program) {
    char key[HVDC_CACHE_KEY_BYTES];
    size_t bytes = 0;
    key_of(d, s, key);
    if (d->cache_directory == NULL || hvdc_cache_has(d->cache_directory, PREFIX, key) ||
        d->cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) != CL_SUCCESS ||
        bytes == 0) {
        return;
    }
    unsigned char *binary = malloc(bytes);
    if (binary != NULL &&
        d->cl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) == CL_SUCCESS) {
        hvdc_cache_write(d->cache_directory, PREFIX, key, binary, bytes);
    }
    free(binary);
}

bool hvdc_program_build(hvdc_device *d, const hvdc_sources *s, cl_program *program, hvdc_failure *failure) {
    char key[HVDC_CACHE_KEY_BYTES];
    key_of(d, s, key);
    *program = from_cache(d, key, s->options);
    if (*program != NULL) {
        return true;
    }
    const char *lines[sizeof s->texts / sizeof s->texts[0]];
    memcpy(lines, s->texts, sizeof lines);
    cl_int code = CL_SUCCESS;
    *program = d->cl.clCreateProgramWithSource(d->context, s->count, lines, NULL, &code);
    if (code != CL_SUCCESS) {
        return hvdc_opencl_fail(failure, code, "a program from source");
    }
    code = d->cl.clBuildProgram(*program, 1, &d->device, s->options, NULL, NULL);
    if (code != CL_SUCCESS) {
        fail_with_log(d, *program, s->options, code, failure);
        d->cl.clReleaseProgram(*program);
        *program = NULL;
        return false;
    }
    ++d->programs_compiled;
    return true;
}

bool hvdc_program_kernel(hvdc_device *d, cl_program program, const char *name, cl_kernel *kernel,
                         hvdc_failure *failure) {
    cl_int code = CL_SUCCESS;
    *kernel = d->cl.clCreateKernel(program, name, &code);
    if (code != CL_SUCCESS) {
        *kernel = NULL;
        return hvdc_opencl_fail(failure, code, name);
    }
    hvdc_device_name(d, *kernel, name);
    return true;
}
