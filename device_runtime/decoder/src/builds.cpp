#include "builds.h"

#include <cstdio>
#include <tuple>

#include "text.h"

namespace hvdc {

namespace {

/* "v2.51.0.260929181845": QAIRT's version, then when it was built. */
struct Build {
    unsigned major = 0, minor = 0, patch = 0;

    // NOLINTNEXTLINE(cert-err34-c,bugprone-unchecked-string-to-number-conversion): six digits fit
    bool parse(const std::string &text) { return sscanf(text.c_str(), "v%6u.%6u.%6u", &major, &minor, &patch) == 3; }
    bool operator<(const Build &other) const {
        return std::tie(major, minor, patch) < std::tie(other.major, other.minor, other.patch);
    }
};

std::string text_of(uint32_t soc, uint32_t arch) {
    return "SoC " + std::to_string(soc) + ", architecture V" + std::to_string(arch);
}

/* The artifact's record of a binary, or NULL. */
const hvdc_decoder_binary *record_of(const hvdc_artifact *artifact, uint32_t tensor) {
    const hvdc_decoder_binary *record = nullptr;
    uint32_t i = 0;
    do record = hvdc_artifact_decoder_binary(artifact, i++);
    while (record != nullptr && record->binary != tensor);
    return record;
}

}  // namespace

bool check_recorded(const hvdc_artifact *artifact, const std::vector<Binary> &binaries, hvdc_failure *failure) {
    for (const Binary &binary : binaries) {
        const hvdc_decoder_binary *record = record_of(artifact, binary.tensor);
        if (record == nullptr) /* before 1.3 */
            return fail(failure, HVDC_FAILURE_ARTIFACT,
                        "the artifact does not say for which device " + binary.path +
                            " was compiled, for its format is too old: compile it again");
        const BinaryInfo &info = binary.info;
        const std::string build = hvdc_artifact_text(artifact, record->build_id);
        if (info.soc != record->soc || info.arch != record->arch || info.build != build)
            return fail(failure, HVDC_FAILURE_ARTIFACT,
                        binary.path + " says that it is for " + text_of(info.soc, info.arch) + " by build " +
                            info.build + ", the artifact says for " + text_of(record->soc, record->arch) +
                            " by build " + build + "; compile the artifact again");
    }
    return true;
}

bool check_devices(const std::vector<Binary> &binaries, uint32_t soc, uint32_t arch, hvdc_failure *failure) {
    for (const Binary &binary : binaries) {
        const BinaryInfo &info = binary.info, &first = binaries.front().info;
        if (info.soc != first.soc || info.arch != first.arch)
            return fail(failure, HVDC_FAILURE_ARTIFACT,
                        binary.path + " is compiled for " + text_of(info.soc, info.arch) + ", " +
                            binaries.front().path + " for " + text_of(first.soc, first.arch) +
                            "; compile the artifact again");
        if ((soc != 0 && info.soc != soc) || (arch != 0 && info.arch != arch))
            return fail(failure, HVDC_FAILURE_DEVICE,
                        binary.path + " is compiled for " + text_of(info.soc, info.arch) + "; this device is " +
                            text_of(soc == 0 ? info.soc : soc, arch == 0 ? info.arch : arch) +
                            ": compile the artifact for it");
    }
    return true;
}

bool check_builds(const std::vector<Binary> &binaries, const std::string &runtime, std::string *newest,
                  hvdc_failure *failure) {
    Build loaded, latest;
    if (!loaded.parse(runtime))
        return fail(failure, HVDC_FAILURE_DEVICE,
                    "the loaded QNN library calls its build '" + runtime + "': expected a version such as v2.51.0");
    for (const Binary &binary : binaries) {
        Build build;
        if (!build.parse(binary.info.build))
            return fail(failure, HVDC_FAILURE_ARTIFACT,
                        binary.path + " was compiled by a build that is called '" + binary.info.build +
                            "': expected a version such as v2.51.0; compile the artifact again");
        if (build.major != loaded.major || loaded < build)
            return fail(failure, HVDC_FAILURE_DEVICE,
                        binary.path + " was compiled by QAIRT " + binary.info.build +
                            ", the loaded QNN library is of " + runtime + ", which is " +
                            (loaded < build ? "older" : "another major version") +
                            ": install the QAIRT runtime that the artifact was compiled with, or a newer one");
        if (newest->empty() || latest < build) {
            latest = build;
            *newest = binary.info.build;
        }
    }
    return true;
}

}  // namespace hvdc
