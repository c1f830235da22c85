/* Videos as JSON, in reports and in lines of progress. */
#ifndef HVDC_RUNNER_VIDEO_JSON_H
#define HVDC_RUNNER_VIDEO_JSON_H

#include <stdio.h>

#include "hvdc/coordinator.h"

void hvdc_put_video(FILE *file, const hvdc_video *video);

/* `, "in_flight": […]` of an event CUT. */
void hvdc_put_in_flight(FILE *file, const hvdc_progress *progress);

#endif
