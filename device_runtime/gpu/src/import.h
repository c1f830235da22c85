/* The device's view of pages that others filled, without a copy. */
#ifndef HVDC_GPU_IMPORT_H
#define HVDC_GPU_IMPORT_H

#include "device.h"

/* A way that worked, and what it needs: a cache policy of cl_qcom_ext_host_ptr, or 0. */
typedef struct hvdc_import {
    enum hvdc_gpu_import way;
    cl_uint policy;
} hvdc_import;

/* Pages to import. By descriptor or AHardwareBuffer it is the object from its start on. */
typedef struct hvdc_pages {
    void *data; /* where this process maps them */
    uint64_t bytes;
    int fd;
    void *hardware_buffer;
} hvdc_pages;

/* The first way through which the device reads what this process writes after the import, and this process what the device
 * writes. HVDC_GPU_IMPORT_COPY if there is none; fails only if options->import asks for one that does not work. */
bool hvdc_import_choose(hvdc_device *device, const hvdc_gpu_options *options, hvdc_import *import,
                        hvdc_failure *failure);

/* Imports all of `pages`, whole 4 KiB pages of shared memory that this process may overwrite, and compares the first and the
 * last of them in both directions. */
bool hvdc_import_check(hvdc_device *device, const hvdc_import *import, const hvdc_pages *pages, hvdc_failure *failure);

/* Whether this way takes an object as a whole, not a part of a mapping. */
bool hvdc_import_is_whole(const hvdc_import *import);

/* Whether the driver has a way's functions, and `pages` what it takes. Names prove nothing, but without them there is
 * nothing to call. */
bool hvdc_import_is_possible(const hvdc_device *device, enum hvdc_gpu_import way, const hvdc_pages *pages);

/* `writable`: for the device. Not for HVDC_GPU_IMPORT_COPY. */
bool hvdc_import_make(hvdc_device *device, const hvdc_import *import, const hvdc_pages *pages, bool writable,
                      cl_mem *memory, hvdc_failure *failure);
void hvdc_import_release(hvdc_device *device, const hvdc_import *import, cl_mem memory);

#endif
