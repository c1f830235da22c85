/* Single kernels on files, for hvdc_gpu_check. */
#ifndef HVDC_GPU_CHECK_KERNELS_H
#define HVDC_GPU_CHECK_KERNELS_H

#include "rows.h"

#define CHECK_MAX_WORDS 32

typedef struct check_kernels {
    bool open;
    hvdc_device device;
    hvdc_gemm gemm;
    hvdc_rows rows;
} check_kernels;

/* Executes a question whose words are words[0 … count): true and an answer, or a failure. *known: whether it is one. */
bool check_kernel(check_kernels *k, const hvdc_gpu_options *options, char *const *words, int count, bool *known,
                  char *answer, size_t answer_bytes, hvdc_failure *failure);
void check_kernels_close(check_kernels *k);

#endif
