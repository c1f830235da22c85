/* Ways of importing, judged by what is written and read back. */
#ifdef __linux__
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "import.h"
#include "program.h"

#define PROBE_WORDS (HVDC_GPU_PAGE_BYTES / 4u)

/* Policies of cl_qcom_ext_host_ptr from the least work to the most: drivers differ in which they honour. */
static const cl_uint POLICIES[] = {CL_MEM_HOST_IOCOHERENT_QCOM, CL_MEM_HOST_UNCACHED_QCOM, CL_MEM_HOST_WRITEBACK_QCOM};

/* Around this process's accesses to a DMA-BUF; other objects have no such call, and no need. */
static void synchronise(int fd, bool begin) {
#ifdef __linux__
    if (fd >= 0) {
        struct dma_buf_sync sync = {(begin ? DMA_BUF_SYNC_START : DMA_BUF_SYNC_END) | DMA_BUF_SYNC_RW};
        (void)ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
    }
#else
    (void)fd;
    (void)begin;
#endif
}

static void pattern(uint32_t seed, uint32_t words[PROBE_WORDS]) {
    for (uint32_t i = 0; i < PROBE_WORDS; ++i) {
        words[i] = (seed + i) * 2654435761u;
    }
}

typedef struct probe {
    hvdc_device *device;
    cl_kernel copy;
    hvdc_buffer own;
    hvdc_pages pages;
    cl_uint at; /* of the page that is looked at, in words from the start of `pages` */
    cl_mem imported;
} probe;

/* From the imported page to the own one, or back. */
static bool copy_page(const probe *p, bool to_own) {
    const cl_uint zero = 0;
    const hvdc_argument to[] = {HVDC_ARGUMENT(p->imported), HVDC_ARGUMENT(p->at), HVDC_ARGUMENT(p->own.memory),
                                HVDC_ARGUMENT(zero)};
    const hvdc_argument from[] = {HVDC_ARGUMENT(p->own.memory), HVDC_ARGUMENT(zero), HVDC_ARGUMENT(p->imported),
                                  HVDC_ARGUMENT(p->at)};
    const hvdc_argument *arguments = to_own ? to : from;
    const uint64_t global[] = {PROBE_WORDS, 1, 1}, local[] = {1, 1, 1};
    return hvdc_device_launch(p->device, p->copy, arguments, sizeof to / sizeof to[0], global, local, NULL) &&
           hvdc_device_finish(p->device, NULL);
}

/* KHR: the driver is told when the memory changes hands. */
static bool hand_over(const probe *p, const hvdc_import *import, bool to_device) {
    if (import->way != HVDC_GPU_IMPORT_KHR_DMA_BUF) {
        return true;
    }
    const hvdc_opencl *cl = &p->device->cl;
    cl_int code = to_device
                      ? cl->clEnqueueAcquireExternalMemObjectsKHR(p->device->queue, 1, &p->imported, 0, NULL, NULL)
                      : cl->clEnqueueReleaseExternalMemObjectsKHR(p->device->queue, 1, &p->imported, 0, NULL, NULL);
    return code == CL_SUCCESS && hvdc_device_finish(p->device, NULL);
}

static void host_writes(const probe *p, uint32_t seed) {
    synchronise(p->pages.fd, true);
    pattern(seed, (uint32_t *)p->pages.data + p->at);
    synchronise(p->pages.fd, false);
}

static bool device_reads(const probe *p, uint32_t seed) {
    uint32_t expected[PROBE_WORDS], found[PROBE_WORDS];
    pattern(seed, expected);
    return copy_page(p, true) && hvdc_device_read(p->device, p->own.memory, 0, found, sizeof found, NULL) &&
           memcmp(expected, found, sizeof found) == 0;
}

static bool device_writes(const probe *p, uint32_t seed) {
    uint32_t words[PROBE_WORDS];
    pattern(seed, words);
    return hvdc_device_write(p->device, p->own.memory, 0, words, sizeof words, NULL) && copy_page(p, false);
}

static bool host_reads(const probe *p, uint32_t seed) {
    uint32_t expected[PROBE_WORDS];
    pattern(seed, expected);
    synchronise(p->pages.fd, true);
    bool same = memcmp((const uint32_t *)p->pages.data + p->at, expected, sizeof expected) == 0;
    synchronise(p->pages.fd, false);
    return same;
}

/* What was written before the import, what is written after it (a driver that copies shows the old), and back. Memory is
 * not mapped through OpenCL in between: that would let such a driver copy again. */
static bool works(probe *p, const hvdc_import *import) {
    host_writes(p, 1);
    if (!hvdc_import_make(p->device, import, &p->pages, true, &p->imported, NULL)) {
        return false;
    }
    bool good = device_reads(p, 1) && hand_over(p, import, false);
    host_writes(p, 2);
    good =
        good && hand_over(p, import, true) && device_reads(p, 2) && device_writes(p, 3) && hand_over(p, import, false);
    good = good && host_reads(p, 3) && hand_over(p, import, true);
    hvdc_import_release(p->device, import, p->imported);
    return hvdc_device_finish(p->device, NULL) && good;
}

static bool search(probe *p, enum hvdc_gpu_import wanted, hvdc_import *import) {
    for (int way = HVDC_GPU_IMPORT_KHR_DMA_BUF; way < HVDC_GPU_IMPORT_COPY; ++way) {
        if ((wanted != HVDC_GPU_IMPORT_ANY && (int)wanted != way) ||
            !hvdc_import_is_possible(p->device, (enum hvdc_gpu_import)way, &p->pages)) {
            continue;
        }
        bool qcom = way >= HVDC_GPU_IMPORT_QCOM_DMABUF && way <= HVDC_GPU_IMPORT_QCOM_AHB;
        for (size_t i = 0; i < (qcom ? sizeof POLICIES / sizeof POLICIES[0] : 1); ++i) {
            *import = (hvdc_import){(enum hvdc_gpu_import)way, qcom ? POLICIES[i] : 0};
            if (works(p, import)) {
                return true;
            }
        }
    }
    return false;
}

static bool begin(hvdc_device *d, probe *p, cl_program *program, hvdc_failure *failure) {
    const hvdc_sources sources = {{hvdc_source_probe_cl}, 1, ""};
    return hvdc_program_build(d, &sources, program, failure) &&
           hvdc_program_kernel(d, *program, "copy_words", &p->copy, failure) &&
           hvdc_device_allocate(d, "a probe", HVDC_GPU_PAGE_BYTES, false, &p->own, failure);
}

static void end(hvdc_device *d, probe *p, cl_program program) {
    hvdc_device_free(d, &p->own);
    hvdc_device_release_kernel(d, p->copy);
    if (program != NULL) {
        d->cl.clReleaseProgram(program);
    }
}

bool hvdc_import_check(hvdc_device *d, const hvdc_import *import, const hvdc_pages *pages, hvdc_failure *failure) {
    const uint64_t last = (pages->bytes / HVDC_GPU_PAGE_BYTES - 1) * PROBE_WORDS;
    probe p = {.device = d, .pages = *pages};
    cl_program program = NULL;
    bool good = begin(d, &p, &program, failure) && hvdc_import_make(d, import, pages, true, &p.imported, failure);
    for (int i = 0; good && i < 2; ++i) {
        p.at = i == 0 ? 0 : (cl_uint)last;
        good = hand_over(&p, import, false);
        host_writes(&p, 4u + (uint32_t)i);
        good = good && hand_over(&p, import, true) && device_reads(&p, 4u + (uint32_t)i) &&
               device_writes(&p, 6u + (uint32_t)i) && hand_over(&p, import, false) &&
               host_reads(&p, 6u + (uint32_t)i) && hand_over(&p, import, true);
        if (!good) {
            hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                      "what is written on one side is not read on the other, in the %s page of %llu bytes",
                      i == 0 ? "first" : "last", (unsigned long long)pages->bytes);
        }
    }
    hvdc_import_release(d, import, p.imported);
    end(d, &p, program);
    return good;
}

bool hvdc_import_choose(hvdc_device *d, const hvdc_gpu_options *options, hvdc_import *import, hvdc_failure *failure) {
    const enum hvdc_gpu_import wanted = options->import;
    const hvdc_gpu_probe *given = options->probe;
    probe p = {.device = d, .pages = {NULL, HVDC_GPU_PAGE_BYTES, -1, NULL}};
    cl_program program = NULL;
    void *own_page = NULL;
    *import = (hvdc_import){HVDC_GPU_IMPORT_COPY, 0};
    if (wanted == HVDC_GPU_IMPORT_COPY) {
        return true;
    }
    if (given != NULL && given->data != NULL && given->bytes >= HVDC_GPU_PAGE_BYTES) {
        p.pages = (hvdc_pages){given->data, given->bytes, given->fd, given->hardware_buffer};
    } else { /* memory of this process: tells about host pointers alone */
        own_page = aligned_alloc(HVDC_GPU_PAGE_BYTES, HVDC_GPU_PAGE_BYTES);
        p.pages.data = own_page;
    }
    bool good = p.pages.data != NULL && begin(d, &p, &program, failure);
    if (good && !search(&p, wanted, import)) {
        *import = (hvdc_import){HVDC_GPU_IMPORT_COPY, 0};
        if (wanted != HVDC_GPU_IMPORT_ANY) {
            good =
                hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                          "%s does not share memory as %s: what is written on one side is not read on the other; leave "
                          "the choice of a way to the engine",
                          d->name, hvdc_gpu_import_name(wanted));
        }
    }
    end(d, &p, program);
    free(own_page);
    return good;
}
