/* What a phone's DSP offers its unsigned processes, in declarations of our own. Nothing of it has been executed: it is
 * compiled and linked, and left undefined in libhvdc_skel.so for the DSP's own image to fill in.
 *
 * Sources: public programs that call them (ggml's Hexagon backend, MNN, tinygrad), and headers that others published:
 * HAP_mem.h, HAP_power.h, HAP_compute_res.h, qurt_thread.h, qurt_futex.h, qurt_mutex.h, qurt_memory.h. */
#ifndef HVDC_HEXAGON_HAP_H
#define HVDC_HEXAGON_HAP_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* HAP_mem.h: memory behind a descriptor that the CPU announced with fastrpc_mmap. (void *)-1: not mapped. */
#define HAP_PROT_READ 1
#define HAP_PROT_WRITE 2
void *HAP_mmap(void *address, int bytes, int protection, int flags, int fd, long offset);
int HAP_munmap(void *address, int bytes);

/* HAP_perf.h */
unsigned long long HAP_perf_get_time_us(void);

/* HAP_power.h: the parts of a request that are used; it is 120 bytes, and zeros ask for nothing. */
enum { HAP_POWER_SET_HVX = 2, HAP_POWER_SET_APPTYPE = 3, HAP_POWER_SET_DCVS_V3 = 12, HAP_POWER_SET_HMX = 13 };
enum { HAP_POWER_COMPUTE_CLIENT = 4, HAP_DCVS_PERFORMANCE = 0x10, HAP_DCVS_CORNER_MAX = 255 };

typedef struct hap_corners {
    uint32_t target, least, most, unused[3]; /* an enum and two counters of the header's */
} hap_corners;

typedef struct hap_dcvs_v3 {
    uint8_t set_enable, enable;
    uint32_t option;
    uint8_t set_latency;
    uint32_t latency_us;
    uint8_t set_core;
    hap_corners core;
    uint8_t set_bus;
    hap_corners bus;
    uint8_t set_unused;
    uint32_t unused[6];
    uint8_t set_sleep_disable, sleep_disable;
} hap_dcvs_v3;

typedef struct hap_power_request {
    uint32_t type;
    union {
        uint64_t align;
        uint32_t apptype;
        uint8_t power_up; /* of HVX and HMX */
        hap_dcvs_v3 dcvs;
        uint8_t bytes[112];
    } of;
} hap_power_request;

static_assert(sizeof(hap_power_request) == 120 && offsetof(hap_power_request, of) == 8, "HAP_power.h has another size");

int HAP_power_set(void *client, hap_power_request *request);

/* HAP_compute_res.h, whose inline functions call these; weak there, so that a DSP may lack them. */
typedef struct hap_compute_attributes {
    uint64_t opaque[20];
} hap_compute_attributes;

#define HAP_WEAK __attribute__((weak))
HAP_WEAK int compute_resource_query_VTCM(unsigned application, unsigned *bytes, void *pages, unsigned *available_bytes,
                                         void *available_pages);
HAP_WEAK int compute_resource_attr_init(hap_compute_attributes *attributes);
HAP_WEAK int compute_resource_attr_set_vtcm_param_v2(hap_compute_attributes *attributes, unsigned bytes,
                                                     unsigned least_page_bytes, unsigned least_bytes);
HAP_WEAK int compute_resource_attr_set_hmx_param(hap_compute_attributes *attributes, unsigned char enable);
HAP_WEAK int compute_resource_attr_get_vtcm_ptr_v2(hap_compute_attributes *attributes, void **vtcm, unsigned *bytes);
HAP_WEAK unsigned compute_resource_acquire(hap_compute_attributes *attributes, unsigned timeout_us);
HAP_WEAK int compute_resource_release(unsigned context);

HAP_WEAK int compute_resource_hmx_lock(unsigned context); /* for the calling thread */
HAP_WEAK int compute_resource_hmx_unlock(unsigned context);

/* qurt_memory.h: 0 is success. */
enum { QURT_MEM_CACHE_FLUSH = 0, QURT_MEM_CACHE_INVALIDATE = 1, QURT_MEM_DCACHE = 1 };
int qurt_mem_cache_clean(unsigned address, unsigned bytes, int operation, int type);

/* qurt_thread.h, qurt_futex.h, qurt_hvx.h. The attributes are a structure that callers fill in; zeros behind it, for a
 * system whose own is longer. */
typedef struct qurt_attributes {
    char name[16];
    uint8_t tcb_partition, stid;
    uint16_t priority;
    uint8_t flags, bus_priority;
    uint16_t timetest_id;
    uint32_t stack_bytes;
    void *stack;
    uint16_t detach_state;
    uint8_t more[32];
} qurt_attributes;

static_assert(sizeof(void *) != 4 || offsetof(qurt_attributes, detach_state) == 32, "qurt_thread.h has another layout");

enum { QURT_PRIORITY_DEFAULT = 254, QURT_BUS_PRIORITY_DEFAULT = 255, QURT_TIMETEST_DEFAULT = 0xfffe };
enum { QURT_JOINABLE = 1 };

int qurt_thread_create(unsigned *thread, qurt_attributes *attributes, void (*entry)(void *), void *argument);
int qurt_thread_join(unsigned thread, int *status);
unsigned qurt_thread_get_id(void);
int qurt_thread_get_priority(unsigned thread);
/* qurt_mutex.h: 16 bytes, and room for more. */
typedef struct qurt_mutex {
    uint64_t words[8];
} qurt_mutex;

void qurt_mutex_init(qurt_mutex *mutex);
void qurt_mutex_lock(qurt_mutex *mutex);
void qurt_mutex_unlock(qurt_mutex *mutex);
void qurt_mutex_destroy(qurt_mutex *mutex);

int qurt_futex_wait(void *word, int value); /* returns at once unless *word is value */
int qurt_futex_wake(void *word, int threads);
int qurt_hvx_get_units(void); /* bits 8 … 15: how many contexts of 128 bytes there are */

#endif
