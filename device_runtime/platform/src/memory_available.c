/* Memory that the system can still give: of the machine, and of the control groups that this process is in. */
#define _GNU_SOURCE

#include "memory_available.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdc/shared_memory.h"

#define PATH_BYTES (2 * PATH_MAX)
#define LINE_BYTES (PATH_MAX + 16)

static FILE *open_in(const char *folder, const char *group, const char *name) {
    char path[PATH_BYTES];
    const int wrote = snprintf(path, sizeof path, "%s%s/%s", folder, group, name);
    return wrote > 0 && (size_t)wrote < sizeof path ? fopen(path, "re") : NULL;
}

/* The number behind `key` at the start of a line; `otherwise` if there is no such file, line or number. */
static uint64_t number_in(FILE *file, const char *key, uint64_t otherwise) {
    char line[LINE_BYTES];
    uint64_t value = otherwise;
    if (file == NULL) return otherwise;
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        char *end;
        const unsigned long long number = strtoull(line + strlen(key), &end, 10);
        if (end == line + strlen(key)) continue;
        value = number;
        break;
    }
    (void)fclose(file);
    return value;
}

/* Cached files that nobody has read for long go first when memory gets scarce, as for MemAvailable. */
static uint64_t left_of_group(const char *folder, const char *group) {
    const uint64_t max = number_in(open_in(folder, group, "memory.max"), "", UINT64_MAX); /* "max": none */
    const uint64_t current = number_in(open_in(folder, group, "memory.current"), "", 0);
    const uint64_t inactive = number_in(open_in(folder, group, "memory.stat"), "inactive_file ", 0);
    const uint64_t taken = current > inactive ? current - inactive : 0;
    return max == UINT64_MAX ? max : max > taken ? max - taken : 0;
}

/* Of cgroup v2: the group and all groups around it. Inside a container the outermost is the container's own. */
static uint64_t left_of_groups(const char *root) {
    char folder[PATH_BYTES], line[LINE_BYTES], *group = NULL;
    uint64_t left = UINT64_MAX;
    FILE *file = open_in(root, "", "proc/self/cgroup");
    (void)snprintf(folder, sizeof folder, "%s/sys/fs/cgroup", root);
    while (file != NULL && group == NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "0::", 3) == 0) group = line + 3;
    if (file != NULL) (void)fclose(file);
    if (group == NULL) return left;
    group[strcspn(group, "\n")] = 0;
    for (char *end = group + strlen(group); end != NULL; end = strrchr(group, '/')) {
        *end = 0;
        const uint64_t of_group = left_of_group(folder, group);
        if (of_group < left) left = of_group;
    }
    return left;
}

uint64_t hvdc_memory_available_in(const char *root) {
    const uint64_t kib = number_in(open_in(root, "", "proc/meminfo"), "MemAvailable:", UINT64_MAX >> 10);
    const uint64_t left = left_of_groups(root), of_machine = kib < UINT64_MAX >> 10 ? kib << 10 : UINT64_MAX;
    return of_machine < left ? of_machine : left;
}

uint64_t hvdc_memory_available_bytes(void) { return hvdc_memory_available_in(""); }
