#include "probe_dsp.h"

/* Every word of a page is another one, and those of another page are others. */
static uint32_t pattern(uint64_t offset, uint32_t i) {
    return (uint32_t)(offset >> 16) * 0x9e3779b9u + i * 2654435761u;
}

static bool sees_page(hvdc_dsp_mapper *dsp, const hvdc_memory_kind *kind, hvdc_memory *memory, uint64_t offset,
                      hvdc_failure *failure) {
    uint32_t *words = (uint32_t *)(void *)(memory->data + offset);
    const uint32_t count = (uint32_t)(PROBE_PAGE_BYTES / sizeof *words);
    bool right = true;
    if (!kind->begin_write(memory, failure)) return false;
    for (uint32_t i = 0; i < count; i++) words[i] = pattern(offset, i);
    if (!kind->end_write(memory, failure) || !hvdc_dsp_mapper_invert(dsp, offset, PROBE_PAGE_BYTES, failure) ||
        !kind->begin_write(memory, failure))
        return false;
    for (uint32_t i = 0; i < count; i++) right = right && words[i] == ~pattern(offset, i);
    if (!kind->end_write(memory, failure)) return false;
    return right || hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                              "the DSP maps it, but does not read what the CPU wrote there, or the reverse");
}

bool probe_dsp_map(hvdc_dsp_mapper *dsp, const hvdc_memory_kind *kind, hvdc_memory *memory, hvdc_failure *failure) {
    hvdc_failure unheard;
    if (!hvdc_dsp_mapper_map(dsp, memory->data, memory->fd, memory->bytes, failure)) return false;
    const uint64_t last = memory->bytes - PROBE_PAGE_BYTES;
    if (sees_page(dsp, kind, memory, 0, failure) && (last == 0 || sees_page(dsp, kind, memory, last, failure)))
        return true;
    (void)hvdc_dsp_mapper_unmap(dsp, &unheard);
    return false;
}
