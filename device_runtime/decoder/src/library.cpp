#include "library.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "text.h"

namespace hvdc {

namespace {

/* The last error that a library logged. The callback has no user pointer, so there is one for all; without a log handle
 * the library prints its errors to standard output. */
std::mutex log_lock;
char last_logged[200];

void on_log(const char *format, uint32_t level, uint64_t, va_list arguments) {
    if (level != QX_LOG_ERROR || format == nullptr) return;
    const std::lock_guard<std::mutex> held(log_lock);
    (void)vsnprintf(last_logged, sizeof last_logged, format, arguments);
    for (char *c = last_logged; *c != 0; c++)
        if (static_cast<unsigned char>(*c) < 0x20) *c = ' ';
}

std::string take_logged() {
    const std::lock_guard<std::mutex> held(log_lock);
    std::string text = last_logged;
    last_logged[0] = 0;
    text.erase(text.find_last_not_of(' ') + 1); /* many end with a new line */
    text.erase(0, text.find_first_not_of(' '));
    return text;
}

std::string text_of(const qx_version &version) {
    return std::to_string(version.major) + "." + std::to_string(version.minor) + "." + std::to_string(version.patch);
}

const char remedy[] = "install the QAIRT runtime that the artifact was compiled with, or a newer one";

}  // namespace

Library::~Library() {
    if (handle_ != nullptr) (void)dlclose(handle_);
}

bool Library::open(const std::string &path, hvdc_failure *failure) {
    path_ = path;
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) return true;
    const char *why = dlerror();
    return fail(failure, HVDC_FAILURE_DEVICE,
                "a library of QNN cannot be loaded: " + std::string(why == nullptr ? path : why) +
                    "; the decoder needs libQnnHtp.so and libQnnSystem.so of QAIRT in one directory");
}

void *Library::symbol(const char *name, hvdc_failure *failure) const {
    void *found = dlsym(handle_, name);
    if (found == nullptr)
        fail(failure, HVDC_FAILURE_DEVICE, path_ + " is no library of QNN: it has no function " + name);
    return found;
}

/* The interfaces that a library offers under the function `name`. */
template <typename Function, typename Provider>
static bool offered_by(const Library &library, const char *name, const Provider ***providers, uint32_t *count,
                       hvdc_failure *failure) {
    const auto get = library.find<Function>(name, failure);
    if (get == nullptr) return false;
    const qx_error error = get(providers, count);
    return (error == QX_OK && *providers != nullptr) ||
           fail(failure, HVDC_FAILURE_DEVICE,
                library.path() + " offers no interface: error " + std::to_string(qx_code(error)));
}

bool System::open(const std::string &path, hvdc_failure *failure) {
    const qx_system_provider **providers = nullptr;
    uint32_t count = 0;
    if (!library_.open(path, failure) ||
        !offered_by<qx_get_system_providers>(library_, QX_SYSTEM_PROVIDERS, &providers, &count, failure))
        return false;
    std::string offered = "none";
    for (uint32_t i = 0; i < count; i++) {
        const qx_version &version = providers[i]->version;
        if (version.major == QX_SYSTEM_MAJOR && version.minor >= QX_SYSTEM_MINOR_LEAST) {
            provider_ = providers[i];
            return true;
        }
        offered = text_of(version);
    }
    return fail(failure, HVDC_FAILURE_DEVICE,
                path + " has another version of the System interface: expected " + std::to_string(QX_SYSTEM_MAJOR) +
                    "." + std::to_string(QX_SYSTEM_MINOR_LEAST) + " or a later one of " +
                    std::to_string(QX_SYSTEM_MAJOR) + ", found " + offered + "; " + remedy);
}

Backend::~Backend() {
    if (device_ != nullptr) (void)api().device_free(device_);
    if (backend_ != nullptr) (void)api().backend_free(backend_);
    if (log_ != nullptr) (void)api().log_free(log_);
}

bool Backend::open(const std::string &path, hvdc_failure *failure) {
    const qx_provider **providers = nullptr;
    uint32_t count = 0;
    if (!library_.open(path, failure) ||
        !offered_by<qx_get_providers>(library_, QX_PROVIDERS, &providers, &count, failure))
        return false;
    std::string offered = "none";
    for (uint32_t i = 0; i < count; i++) {
        const qx_version &core = providers[i]->core;
        offered = "backend " + std::to_string(providers[i]->backend_id) + " with core API " + text_of(core);
        if (providers[i]->backend_id != QX_BACKEND_HTP || core.major != QX_CORE_MAJOR ||
            core.minor < QX_CORE_MINOR_LEAST || core.minor == QX_CORE_MINOR_BROKEN)
            continue;
        provider_ = providers[i];
        return true;
    }
    return fail(failure, HVDC_FAILURE_DEVICE,
                path + " has no interface that can be used: expected HTP (backend " + std::to_string(QX_BACKEND_HTP) +
                    ") with core API " + std::to_string(QX_CORE_MAJOR) + "." + std::to_string(QX_CORE_MINOR_LEAST) +
                    " or a later one of " + std::to_string(QX_CORE_MAJOR) + " but " + std::to_string(QX_CORE_MAJOR) +
                    "." + std::to_string(QX_CORE_MINOR_BROKEN) + ", found " + offered + "; " + remedy);
}

bool Backend::start(uint32_t soc, uint32_t arch, bool emulator, hvdc_failure *failure) {
    if (api().log_create(on_log, QX_LOG_ERROR, &log_) != QX_OK) log_ = nullptr; /* then it prints, no more */
    qx_error error = api().backend_create(log_, nullptr, &backend_);
    if (error != QX_OK) {
        backend_ = nullptr; /* a handle may be there all the same, and freeing it is another error */
        return fail(failure, HVDC_FAILURE_DEVICE, "the NPU's backend does not start: " + describe(error));
    }
    const char *build = nullptr;
    if (api().backend_get_build_id(&build) == QX_OK && build != nullptr) build_ = build;
    error = emulator ? make_device(soc, arch) : api().device_create(log_, nullptr, &device_);
    if (error != QX_OK && !emulator) error = make_device(soc, arch);
    if (error == QX_OK) return true;
    device_ = nullptr;
    return fail(failure, HVDC_FAILURE_DEVICE,
                "the NPU's backend has no device of SoC " + std::to_string(soc) + ", architecture " +
                    std::to_string(arch) + ": " + describe(error));
}

qx_error Backend::make_device(uint32_t soc, uint32_t arch) {
    qx_htp_device of_soc{}, of_arch{};
    of_soc.option = QX_HTP_SOC;
    of_soc.u.soc = soc;
    of_arch.option = QX_HTP_ARCH;
    of_arch.u.arch.arch = arch;
    const qx_device_config first{QX_DEVICE_CUSTOM, &of_soc}, second{QX_DEVICE_CUSTOM, &of_arch};
    const qx_device_config *const config[] = {&first, &second, nullptr};
    return api().device_create(log_, config, &device_);
}

std::string Backend::describe(qx_error error) const {
    const char *message = nullptr;
    std::string text = "error " + std::to_string(qx_code(error));
    if (api().error_get_message(error, &message) == QX_OK && message != nullptr)
        text += " (" + std::string(message) + ")";
    const std::string logged = take_logged();
    return logged.empty() ? text : text + ", " + logged;
}

}  // namespace hvdc
