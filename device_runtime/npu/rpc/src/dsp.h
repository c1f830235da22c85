/* What the DSP's end needs of the system that it runs on. npu/hexagon/src/dsp_device.c asks a phone's DSP,
 * dsp_emulated.c a Linux process, which under qemu-hexagon takes the DSP's place. */
#ifndef HVDC_RPC_DSP_H
#define HVDC_RPC_DSP_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"

/* The memory behind a descriptor of the calling process, from its start. */
bool hvdc_dsp_map(int fd, uint64_t bytes, bool writable, uint8_t **data, hvdc_failure *failure);
void hvdc_dsp_unmap(uint8_t *data, uint64_t bytes);

/* Caches: before the DSP reads what the CPU wrote, after the DSP wrote what the CPU will read. */
bool hvdc_dsp_before_read(const void *data, uint64_t bytes, hvdc_failure *failure);
bool hvdc_dsp_after_write(const void *data, uint64_t bytes, hvdc_failure *failure);

/* Clocks up and the vector and matrix units on, or everything as it was. `client` names who asks. */
bool hvdc_dsp_power(void *client, bool up, hvdc_failure *failure);

/* VTCM and the matrix unit, for one holder at a time. */
typedef struct hvdc_dsp_units {
    uint32_t context; /* 0: none are held */
    uint8_t *vtcm;
    uint32_t vtcm_bytes;
} hvdc_dsp_units;

/* As much VTCM as is free of `most_bytes`, and not less than `least_bytes`. */
bool hvdc_dsp_acquire(uint32_t least_bytes, uint32_t most_bytes, hvdc_dsp_units *units, hvdc_failure *failure);
void hvdc_dsp_release(hvdc_dsp_units *units);

/* selftest.h of the units that are held: a line for each check, and a zero byte; how many have failed, and how many of
 * these leave no result of any worth. */
bool hvdc_dsp_selftest(const hvdc_dsp_units *units, char *report, uint32_t bytes, uint32_t *failed, uint32_t *worthless,
                       hvdc_failure *failure);

typedef struct hvdc_dsp_facts {
    uint32_t arch; /* 79 for V79; 0: none, the code is not Hexagon's */
    uint32_t contexts;
    uint32_t vtcm_bytes;
    bool adds_exactly; /* whether its engine can promise HVDC_NPU_SUMS_EXACT */
    bool has_unit;     /* whether its engine computes with the matrix unit that reads VTCM */
} hvdc_dsp_facts;

hvdc_dsp_facts hvdc_dsp_describe(void);

/* Emulation only: descriptors are those of this process. */
void hvdc_dsp_serve(uint32_t client_pid);

/* Emulation only: other sessions hold so much of the VTCM. */
void hvdc_dsp_lack_vtcm(uint32_t bytes);

/* Emulation only: from here on, engines compute with the model of the matrix unit, in memory in VTCM's place. */
void hvdc_dsp_use_unit(void);

#endif
