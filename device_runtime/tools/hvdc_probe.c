/* hvdc_probe: what a platform really allows, found out by trying. `--help` says more; docs/MEASURING.md what it is for.
 *
 * Every fact is a line of JSON on standard output, written as soon as it is known, and a line says what will be tried
 * next: where a driver takes the process or the phone down, what was learnt until then is known, and what did it. */
#define _GNU_SOURCE

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "hvdc/dsp.h"
#include "hvdc/shared_memory.h"
#include "probe_dsp.h"
#include "probe_lines.h"
#include "probe_options.h"
#ifdef HVDC_WITH_GPU
#include "hvdc/gpu_facts.h"
#endif

#define REPORT_VERSION 1
#define MIB (UINT64_C(1) << 20)
#define SMALL_BYTES (UINT64_C(64) << 10) /* of a mapping that is only counted */
#define DEVICES_MAX 16
#define KINDS_MAX 8u

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

typedef struct prober {
    probe_options options;
    const hvdc_memory_kind *kind;
    hvdc_dsp_mapper *dsp; /* NULL: none */
#ifdef HVDC_WITH_GPU
    hvdc_gpu_prober *gpu; /* NULL: none */
    bool imports;         /* the GPU has a way of importing this kind */
#endif
} prober;

/* Says what will be tried next. False: that took the device down before. */
static bool may_try(const probe_options *o, const char *what, uint64_t bytes, hvdc_failure *failure) {
    if (probe_is_avoided(o, what, bytes))
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "not tried: a probe before ended while it tried this");
    trying(what, bytes);
    return true;
}

static void say_memory(void) {
    struct sysinfo system;
    begin("memory");
    number("total_bytes", sysinfo(&system) == 0 ? (uint64_t)system.totalram * system.mem_unit : 0);
    number("available_bytes", hvdc_memory_available_bytes());
    number("page_bytes", (uint64_t)sysconf(_SC_PAGESIZE));
    end();
}

#ifdef HVDC_WITH_GPU
static void say_gpu(const hvdc_gpu_facts *facts, int index) {
    begin("gpu");
    number("index", (uint64_t)index);
    text("platform", facts->platform);
    text("device", facts->device);
    text("driver", facts->driver);
    yes_no("is_cpu", facts->is_cpu);
    number("max_buffer_bytes", facts->max_buffer_bytes);
    end();
}

static void try_dots(const probe_options *o, hvdc_gpu_prober *gpu, int index) {
    static const enum hvdc_gpu_dot forms[] = {HVDC_GPU_DOT_KHR, HVDC_GPU_DOT_QCOM, HVDC_GPU_DOT_NVIDIA,
                                              HVDC_GPU_DOT_PLAIN};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        hvdc_failure failure = {.message = ""};
        const bool right =
            may_try(o, hvdc_gpu_dot_name(forms[i]), 0, &failure) && hvdc_gpu_prober_dot(gpu, forms[i], &failure);
        begin("dot");
        number("index", (uint64_t)index);
        text("form", hvdc_gpu_dot_name(forms[i]));
        yes_no("right", right);
        text("why", right ? "" : failure.message);
        end();
    }
}

static void say_no_gpu(const hvdc_failure *failure) {
    begin("no-gpu");
    text("why", failure->message);
    end();
}

/* Every device, or the one that is named. */
static void look_at_gpus(const probe_options *o) {
    for (int i = 0; i < DEVICES_MAX; i++) {
        char index[16];
        hvdc_gpu_facts facts;
        hvdc_gpu_prober *gpu;
        hvdc_failure failure;
        (void)snprintf(index, sizeof index, "%d", i);
        const hvdc_gpu_options options = {.library = o->opencl, .device = o->device != NULL ? o->device : index};
        if (!may_try(o, "gpu", 0, &failure) || !hvdc_gpu_prober_open(&options, &gpu, &facts, &failure)) {
            if (i == 0) say_no_gpu(&failure);
            return;
        }
        say_gpu(&facts, i);
        try_dots(o, gpu, i);
        hvdc_gpu_prober_close(gpu);
        if (o->device != NULL) return;
    }
}

static void open_gpu(prober *p) {
    const hvdc_gpu_options options = {.library = p->options.opencl, .device = p->options.device};
    hvdc_gpu_facts facts;
    hvdc_failure failure;
    if (!may_try(&p->options, "gpu", 0, &failure) || !hvdc_gpu_prober_open(&options, &p->gpu, &facts, &failure)) {
        say_no_gpu(&failure);
        return;
    }
    say_gpu(&facts, 0);
    try_dots(&p->options, p->gpu, 0);
}

/* One kind's handle is an AHardwareBuffer. */
static hvdc_gpu_probe probe_of(const prober *p, const hvdc_memory *memory) {
    const bool is_hardware_buffer = strcmp(p->kind->name, "AHardwareBuffer") == 0;
    return (hvdc_gpu_probe){.data = memory->data,
                            .bytes = memory->bytes,
                            .fd = memory->fd,
                            .hardware_buffer = is_hardware_buffer ? memory->handle : NULL};
}

/* The first way by which the GPU imports this memory; NULL for none, with the reason. */
static const char *way_of(prober *p, const hvdc_memory *memory, hvdc_failure *failure) {
    const hvdc_gpu_probe given = probe_of(p, memory);
    enum hvdc_gpu_import way = HVDC_GPU_IMPORT_COPY;
    if (p->gpu == NULL) return NULL;
    p->imports = hvdc_gpu_prober_import(p->gpu, &given, &way, failure) && way != HVDC_GPU_IMPORT_COPY;
    if (p->imports) return hvdc_gpu_import_name(way);
    if (failure->message[0] == 0)
        (void)hvdc_fail(failure, HVDC_FAILURE_DEVICE, "by no way does the GPU read what is written, and the reverse");
    return NULL;
}

static bool gpu_sees(prober *p, const hvdc_memory *memory, bool keep, hvdc_failure *failure) {
    const hvdc_gpu_probe given = probe_of(p, memory);
    if (!p->imports) return true;
    return keep ? hvdc_gpu_prober_keep(p->gpu, &given, failure) : hvdc_gpu_prober_check(p->gpu, &given, failure);
}

static void gpu_drops(prober *p) {
    if (p->gpu != NULL) hvdc_gpu_prober_drop(p->gpu);
}
static bool gpu_imports(const prober *p) { return p->imports; }
static bool has_gpu(const prober *p) { return p->gpu != NULL; }
static void close_gpu(prober *p) { hvdc_gpu_prober_close(p->gpu); }
#else
static void look_at_gpus(const probe_options *o) { (void)o; }
static void open_gpu(prober *p) { (void)p; }
static const char *way_of(prober *p, const hvdc_memory *memory, hvdc_failure *failure) {
    (void)p, (void)memory, (void)failure;
    return NULL;
}
static bool gpu_sees(prober *p, const hvdc_memory *memory, bool keep, hvdc_failure *failure) {
    (void)p, (void)memory, (void)keep, (void)failure;
    return true;
}
static void gpu_drops(prober *p) { (void)p; }
static bool gpu_imports(const prober *p) {
    (void)p;
    return false;
}
static bool has_gpu(const prober *p) {
    (void)p;
    return false;
}
static void close_gpu(prober *p) { (void)p; }
#endif

static void open_dsp(prober *p) {
    const hvdc_dsp_options options = {.library = p->options.fastrpc, .skel_folder = p->options.skels};
    hvdc_dsp_description dsp;
    hvdc_failure failure;
    if (!may_try(&p->options, "dsp", 0, &failure) || !hvdc_dsp_mapper_open(&options, &p->dsp, &dsp, &failure)) {
        begin("no-dsp");
        text("why", failure.message);
        end();
        return;
    }
    begin("dsp");
    number("arch", dsp.arch);
    number("contexts", dsp.contexts);
    number("vtcm_bytes", dsp.vtcm_bytes);
    end();
}

/* Kinds whose two mappings are the same memory: of the CPU alone. */
static uint32_t try_kinds(const prober *p, const hvdc_memory_kind *works[KINDS_MAX]) {
    uint32_t count = 0;
    for (const hvdc_memory_kind *const *kind = hvdc_memory_kinds(); *kind != NULL && count < KINDS_MAX; kind++) {
        hvdc_failure failure = {.message = ""};
        const bool good =
            may_try(&p->options, (*kind)->name, PROBE_PAGE_BYTES, &failure) && hvdc_memory_probe(*kind, &failure);
        if (good) works[count++] = *kind;
        begin("kind");
        text("name", (*kind)->name);
        yes_no("works", good);
        text("why", good ? "" : failure.message);
        end();
    }
    return count;
}

/* Whether p->kind is memory that every engine that there is takes. */
static bool try_sharing(prober *p) {
    hvdc_memory page;
    hvdc_failure failure = {.message = ""}, unheard;
    const char *way = NULL;
    bool mapped = false;
    char what[64];
    (void)snprintf(what, sizeof what, "sharing %s", p->kind->name);
    const bool made = may_try(&p->options, what, PROBE_PAGE_BYTES, &failure) &&
                      p->kind->create("hvdc:probe", PROBE_PAGE_BYTES, &page, &failure);
    if (made) {
        way = way_of(p, &page, &failure);
        mapped = p->dsp != NULL && probe_dsp_map(p->dsp, p->kind, &page, &failure);
        if (mapped) (void)hvdc_dsp_mapper_unmap(p->dsp, &unheard);
        p->kind->close(&page);
    }
    const bool shares = made && (way != NULL || !has_gpu(p)) && (mapped || p->dsp == NULL);
    begin("sharing");
    text("kind", p->kind->name);
    text("way", way != NULL ? way : "copy");
    yes_no("gpu", way != NULL);
    yes_no("dsp", mapped);
    yes_no("shares", shares);
    text("why", failure.message);
    end();
    return shares;
}

/* The first kind that all engines share, else the first that works, as if it were the only one. */
static bool choose_kind(prober *p) {
    const hvdc_memory_kind *works[KINDS_MAX];
    const uint32_t count = try_kinds(p, works);
    uint32_t chosen = count;
    for (uint32_t i = 0; i < count; i++) {
        p->kind = works[i];
        if (try_sharing(p) && chosen == count) chosen = i;
    }
    if (count == 0u) return false;
    chosen = chosen == count ? 0u : chosen;
    if (p->kind != works[chosen]) {
        p->kind = works[chosen];
        (void)try_sharing(p); /* the way of importing is that of the last kind that was tried */
    }
    begin("chosen");
    text("kind", p->kind->name);
    end();
    return true;
}

/* A quarter of what there is stays everybody else's. */
static bool is_affordable(uint64_t bytes, uint64_t available, hvdc_failure *failure) {
    return bytes <= available / 4u * 3u ||
           hvdc_fail(failure, HVDC_FAILURE_MEMORY, "not tried: only %" PRIu64 " MiB are available", available / MIB);
}

static bool try_region(prober *p, uint64_t bytes) {
    hvdc_memory memory;
    hvdc_failure failure = {.message = ""}, unheard;
    const bool affordable = may_try(&p->options, "region", bytes, &failure) &&
                            is_affordable(bytes, hvdc_memory_available_bytes(), &failure);
    const bool made = affordable && p->kind->create("hvdc:probe", bytes, &memory, &failure);
    const bool seen = made && gpu_sees(p, &memory, false, &failure);
    const bool mapped = seen && (p->dsp == NULL || probe_dsp_map(p->dsp, p->kind, &memory, &failure));
    if (mapped && p->dsp != NULL) (void)hvdc_dsp_mapper_unmap(p->dsp, &unheard);
    if (made) p->kind->close(&memory);
    begin("region");
    number("bytes", bytes);
    yes_no("works", mapped);
    yes_no("tried", affordable);
    yes_no("gpu", gpu_imports(p));
    yes_no("dsp", p->dsp != NULL);
    text("refused_by", mapped || !affordable ? "" : !made ? p->kind->name : !seen ? "gpu" : "dsp");
    text("why", mapped ? "" : failure.message);
    end();
    return mapped;
}

/* Sizes that grow, then those between the last that worked and the first that did not, to a MiB. The largest that
 * works. */
static uint64_t try_regions(prober *p) {
    static const uint32_t steps[] = {1, 16, 32, 64, 128, 192, 256, 320, 384, 448, 480, 496, 504, 508, 510, 511};
    uint32_t works = p->options.known_mib, refused = 0;
    for (size_t i = 0; refused == 0 && i < sizeof steps / sizeof *steps && steps[i] <= p->options.largest_mib; i++)
        if (steps[i] > works) *(try_region(p, steps[i] * MIB) ? &works : &refused) = steps[i];
    for (uint32_t mib = 512; refused == 0 && mib <= p->options.largest_mib; mib += 64)
        if (mib > works) *(try_region(p, mib * MIB) ? &works : &refused) = mib;
    if (refused == 0 && works < p->options.largest_mib)
        *(try_region(p, p->options.largest_mib * MIB) ? &works : &refused) = p->options.largest_mib;
    /* Towards one that took the device down nobody feels their way. */
    while (refused > works + 1u && !probe_is_avoided(&p->options, "region", refused * MIB)) {
        const uint32_t middle = works + (refused - works) / 2u;
        *(try_region(p, middle * MIB) ? &works : &refused) = middle;
    }
    return works * MIB;
}

/* Regions of one size, all there at once, until one is refused or there are enough. */
static void fill(prober *p, const char *what, uint64_t each, uint32_t most) {
    hvdc_memory *held = calloc(most, sizeof *held);
    hvdc_failure failure = {.message = ""}, unheard;
    uint32_t count = 0, mapped = 0;
    const uint64_t available = hvdc_memory_available_bytes();
    if (held == NULL) return;
    for (bool good = true; good && count < most;) {
        if (count % 16u == 0u || each > MIB) {
            /* What is said once for all that follow until the next time is avoided with them. */
            good = may_try(&p->options, what, (count + 1u) * each, &failure);
            if (!good) break;
        }
        good = is_affordable((count + 1u) * each, available, &failure) &&
               p->kind->create("hvdc:probe", each, &held[count], &failure);
        if (!good) break;
        good = gpu_sees(p, &held[count], true, &failure) &&
               (p->dsp == NULL || probe_dsp_map(p->dsp, p->kind, &held[count], &failure));
        count++;
        mapped += good ? 1u : 0u;
        if (good && (mapped % 16u == 0u || each > MIB)) {
            begin("mapped");
            text("what", what);
            number("count", mapped);
            number("total_bytes", mapped * each);
            yes_no("gpu", gpu_imports(p));
            yes_no("dsp", p->dsp != NULL);
            end();
        }
    }
    begin("mappings");
    text("what", what);
    number("count", mapped);
    number("total_bytes", mapped * each);
    yes_no("refused", mapped < most);
    yes_no("gpu", gpu_imports(p));
    yes_no("dsp", p->dsp != NULL);
    text("why", mapped < most ? failure.message : "");
    end();
    gpu_drops(p);
    for (uint32_t i = 0; p->dsp != NULL && i < mapped; i++) (void)hvdc_dsp_mapper_unmap(p->dsp, &unheard);
    while (count > 0u) p->kind->close(&held[--count]);
    free(held);
}

static void probe(prober *p) {
    say_memory();
    open_gpu(p);
    open_dsp(p);
    if (!choose_kind(p)) return;
    const uint64_t largest = try_regions(p);
    if (!p->options.skip_count) fill(p, "count", SMALL_BYTES, p->options.mappings);
    const uint64_t each = largest < 128u * MIB ? largest : 128u * MIB;
    if (each != 0 && !p->options.skip_total) fill(p, "total", each, (uint32_t)(p->options.total_mib * MIB / each));
}

int main(int argc, char **argv) {
    prober p = {.kind = NULL};
    if (!probe_options_parse(argc, argv, &p.options)) return EXIT_USAGE;
    if (p.options.help) return fputs(PROBE_HELP, stdout) < 0 ? EXIT_FAILED : EXIT_DONE;
    if (!probe_lines_open(REPORT_VERSION)) {
        (void)fputs("hvdc_probe: there is no standard output\n", stderr);
        return EXIT_FAILED;
    }
    p.options.only_gpu ? look_at_gpus(&p.options) : probe(&p);
    hvdc_dsp_mapper_close(p.dsp);
    close_gpu(&p);
    begin("done");
    end();
    return probe_lines_close() ? EXIT_DONE : EXIT_FAILED;
}
