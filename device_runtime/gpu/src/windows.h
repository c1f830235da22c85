/* The parts of the data files that the device reads in place: all that a block needs but its feed-forward pair. */
#ifndef HVDC_GPU_WINDOWS_H
#define HVDC_GPU_WINDOWS_H

#include "model.h"

/* Fills model->windows through model->import. No window is larger than a buffer may be; a tensor lies in one whole. What
 * the device sees at both ends of each is compared with what this process sees. */
/* Which parts of which files, by the limits of the device and the way of importing; hvdc_windows_open begins with it. */
bool hvdc_windows_plan(const hvdc_device *device, hvdc_model *model, hvdc_failure *failure);

bool hvdc_windows_open(hvdc_device *device, const hvdc_gpu_options *options, hvdc_model *model, hvdc_failure *failure);
void hvdc_windows_close(hvdc_device *device, hvdc_model *model);

#endif
