#include "hvdc/gpu_facts.h"

#include <stdlib.h>
#include <string.h>

#include "gemm.h"
#include "import.h"

struct hvdc_gpu_prober {
    hvdc_gpu_options options;
    hvdc_device device;
    hvdc_import import;
    cl_mem *kept;
    size_t count, room;
};

static uint64_t number_of(const hvdc_device *d, cl_device_info what) {
    cl_ulong value = 0;
    return d->cl.clGetDeviceInfo(d->device, what, sizeof value, &value, NULL) == CL_SUCCESS ? value : 0;
}

bool hvdc_gpu_prober_open(const hvdc_gpu_options *options, hvdc_gpu_prober **prober, hvdc_gpu_facts *facts,
                          hvdc_failure *failure) {
    hvdc_gpu_prober *p = calloc(1, sizeof *p);
    *prober = NULL;
    if (p == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory to look at a GPU with");
    }
    p->options = *options;
    p->import.way = HVDC_GPU_IMPORT_COPY;
    if (!hvdc_device_open(&p->options, &p->device, failure)) {
        free(p);
        return false;
    }
    *facts = (hvdc_gpu_facts){.is_cpu = p->device.is_cpu,
                              .max_buffer_bytes = number_of(&p->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE)};
    memcpy(facts->platform, p->device.platform_name, sizeof facts->platform);
    memcpy(facts->device, p->device.name, sizeof facts->device);
    memcpy(facts->driver, p->device.driver, sizeof facts->driver);
    *prober = p;
    return true;
}

void hvdc_gpu_prober_close(hvdc_gpu_prober *p) {
    if (p == NULL) {
        return;
    }
    hvdc_gpu_prober_drop(p);
    free(p->kept);
    hvdc_device_close(&p->device);
    free(p);
}

bool hvdc_gpu_prober_dot(hvdc_gpu_prober *p, enum hvdc_gpu_dot dot, hvdc_failure *failure) {
    hvdc_gpu_options options = p->options;
    hvdc_gemm gemm;
    options.dot = dot;
    options.gemm_shape = 1; /* one shape answers; which is the fastest is not asked */
    if (!hvdc_gemm_open(&p->device, &options, &gemm, failure)) {
        return false;
    }
    hvdc_gemm_release(&p->device, &gemm);
    return true;
}

bool hvdc_gpu_prober_import(hvdc_gpu_prober *p, const hvdc_gpu_probe *memory, enum hvdc_gpu_import *way,
                            hvdc_failure *failure) {
    hvdc_gpu_options options = p->options;
    options.probe = memory;
    if (!hvdc_import_choose(&p->device, &options, &p->import, failure)) {
        return false;
    }
    *way = p->import.way;
    return true;
}

static hvdc_pages pages_of(const hvdc_gpu_probe *memory) {
    return (hvdc_pages){memory->data, memory->bytes, memory->fd, memory->hardware_buffer};
}

bool hvdc_gpu_prober_check(hvdc_gpu_prober *p, const hvdc_gpu_probe *memory, hvdc_failure *failure) {
    const hvdc_pages pages = pages_of(memory);
    return hvdc_import_check(&p->device, &p->import, &pages, failure);
}

bool hvdc_gpu_prober_keep(hvdc_gpu_prober *p, const hvdc_gpu_probe *memory, hvdc_failure *failure) {
    const hvdc_pages pages = pages_of(memory);
    if (p->count == p->room) {
        const size_t room = p->room == 0 ? 64 : 2 * p->room;
        cl_mem *more = realloc(p->kept, room * sizeof *more);
        if (more == NULL) {
            return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a list of buffers");
        }
        p->kept = more;
        p->room = room;
    }
    if (!hvdc_import_make(&p->device, &p->import, &pages, false, &p->kept[p->count], failure)) {
        return false;
    }
    p->count++;
    return true;
}

void hvdc_gpu_prober_drop(hvdc_gpu_prober *p) {
    while (p->count > 0) {
        hvdc_import_release(&p->device, &p->import, p->kept[--p->count]);
    }
    (void)hvdc_device_finish(&p->device, NULL);
}
