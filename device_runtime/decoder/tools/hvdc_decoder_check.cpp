/* hvdc_decoder_check OPTIONS ARTIFACT: opens an artifact's decoder, checks all that can be checked, prints what was found
 * as JSON. With --latent it decodes.
 *
 *   --libraries DIR          where libQnnHtp.so and libQnnSystem.so are
 *   --backend NAME           another name for the first, --system NAME for the second
 *   --soc N, --arch N        what this device is; compared with the binaries'
 *   --emulator yes|no        the libraries are those that emulate the NPU on x86; by default what this program runs on
 *   --latent FILE            raw FP32 [channels][frames][rows][columns], little-endian
 *   --size FRAMESxROWSxCOLUMNS   of it, in latent frames and pixels
 *   --output FILE            raw uint8 [frames][height][width][3], RGB
 *
 * QNN's library prints to standard output when it is loaded, so that is sent to standard error while it works. Exit
 * status: 0; 1 with one sentence on standard error; 2 for other arguments. */
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "hvdc/decoder.h"

namespace {

using File = std::unique_ptr<FILE, int (*)(FILE *)>;

struct Arguments {
    hvdc_decoder_options options = hvdc_decoder_default_options();
    const char *artifact = nullptr, *latent = nullptr, *output = nullptr;
    unsigned frames = 0, rows = 0, columns = 0;
};

int usage(const std::string &what) {
    (void)fprintf(stderr, "hvdc_decoder_check: %s; hvdc_decoder_check.cpp lists the options\n", what.c_str());
    return 2;
}

bool parse_number(const char *text, uint32_t *value) {
    char *end = nullptr;
    const unsigned long found = strtoul(text, &end, 10);
    *value = static_cast<uint32_t>(found);
    return end != text && *end == 0 && found <= UINT32_MAX;
}

/* Whether an option is known, and its value can be used. */
bool parse_option(const std::string &name, const char *value, Arguments *arguments) {
    hvdc_decoder_options &options = arguments->options;
    if (name == "--libraries")
        options.libraries = value;
    else if (name == "--backend")
        options.backend_library = value;
    else if (name == "--system")
        options.system_library = value;
    else if (name == "--latent")
        arguments->latent = value;
    else if (name == "--output")
        arguments->output = value;
    else if (name == "--soc")
        return parse_number(value, &options.soc);
    else if (name == "--arch")
        return parse_number(value, &options.arch);
    else if (name == "--emulator") {
        options.emulator = strcmp(value, "yes") == 0;
        return options.emulator || strcmp(value, "no") == 0;
    } else if (name == "--size")
        // NOLINTNEXTLINE(cert-err34-c,bugprone-unchecked-string-to-number-conversion): nine digits fit
        return sscanf(value, "%9ux%9ux%9u", &arguments->frames, &arguments->rows, &arguments->columns) == 3;
    else
        return false;
    return true;
}

std::string quoted(const char *text) {
    std::string out = "\"";
    for (; *text != 0; text++) {
        char escaped[8];
        const auto c = static_cast<unsigned char>(*text);
        (void)snprintf(escaped, sizeof escaped, c < 0x20 || c == '"' || c == '\\' ? "\\u%04x" : "%c", c);
        out += escaped;
    }
    return out + "\"";
}

struct Output {
    FILE *file;
    size_t frame_bytes;
};

bool write_frame(void *user, uint32_t frame, const uint8_t *rgb, hvdc_failure *failure) {
    const auto *output = static_cast<const Output *>(user);
    if (fwrite(rgb, 1, output->frame_bytes, output->file) == output->frame_bytes) return true;
    return hvdc_fail(failure, HVDC_FAILURE_FILE, "frame %u cannot be written: is the disk full?", frame);
}

bool read_latent(const Arguments &arguments, uint32_t channels, std::vector<float> *values, hvdc_failure *failure) {
    const uint64_t plane = uint64_t{arguments.rows} * arguments.columns, due = plane * arguments.frames * channels;
    const File file(fopen(arguments.latent, "rb"), fclose);
    if (file == nullptr || fseek(file.get(), 0, SEEK_END) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be read: check the path", arguments.latent);
    const long bytes = ftell(file.get());
    if (bytes < 0 || plane > (uint64_t{1} << 40) || static_cast<uint64_t>(bytes) != due * sizeof(float))
        return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s has %ld bytes: expected %llu float32 by --size",
                         arguments.latent, bytes, static_cast<unsigned long long>(due));
    values->resize(due);
    if (fseek(file.get(), 0, SEEK_SET) == 0 &&
        fread(values->data(), sizeof(float), values->size(), file.get()) == values->size())
        return true;
    return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be read to its end", arguments.latent);
}

bool decode(hvdc_frame_decoder *decoder, const Arguments &arguments, uint32_t channels, hvdc_failure *failure) {
    std::vector<float> values;
    uint32_t size[3];
    if (!read_latent(arguments, channels, &values, failure)) return false;
    const hvdc_decoder_latent latent{values.data(), channels, arguments.frames, arguments.rows, arguments.columns};
    if (!hvdc_frame_decoder_size(decoder, &latent, size, failure)) return false;
    File file(fopen(arguments.output, "wb"), fclose);
    if (file == nullptr) return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be written", arguments.output);
    Output output{file.get(), size_t{3} * size[1] * size[2]};
    if (!hvdc_frame_decoder_decode(decoder, &latent, write_frame, &output, failure)) return false;
    if (fclose(file.release()) == 0) return true;
    return hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be written to its end", arguments.output);
}

void print(const hvdc_decoder_facts &facts, double open_s, double decode_s) {
    (void)printf(
        "{\"backend_build\": %s, \"binary_build\": %s, \"core_api\": \"%u.%u.%u\", \"soc\": %u, \"arch\": %u, "
        "\"contexts\": %u, \"contexts_loaded\": %u, \"memory\": %s, \"memory_is_shared\": %s, "
        "\"buffer_bytes\": %llu, \"clip_bytes\": %llu, \"open_s\": %.3f, \"decode_s\": %.3f}\n",
        quoted(facts.backend_build).c_str(), quoted(facts.binary_build).c_str(), facts.core_api[0], facts.core_api[1],
        facts.core_api[2], facts.soc, facts.arch, facts.contexts, facts.contexts_loaded, quoted(facts.memory).c_str(),
        facts.memory_is_shared ? "true" : "false", static_cast<unsigned long long>(facts.buffer_bytes),
        static_cast<unsigned long long>(facts.clip_bytes), open_s, decode_s);
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool check(const hvdc_artifact *artifact, const Arguments &arguments, hvdc_decoder_facts *facts, double seconds[2],
           hvdc_failure *failure) {
    hvdc_frame_decoder *decoder = nullptr;
    const double begin = now_s();
    if (!hvdc_frame_decoder_open(artifact, &arguments.options, &decoder, failure)) return false;
    const double opened = now_s();
    bool good = true;
    if (arguments.latent != nullptr)
        good = decode(decoder, arguments, hvdc_artifact_decoder(artifact)->channels, failure);
    seconds[0] = opened - begin;
    seconds[1] = now_s() - opened;
    hvdc_frame_decoder_facts(decoder, facts);
    hvdc_frame_decoder_close(decoder);
    return good;
}

}  // namespace

int main(int argc, char **argv) {
    Arguments arguments;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name.compare(0, 2, "--") != 0) {
            if (arguments.artifact != nullptr) return usage("one artifact at a time");
            arguments.artifact = argv[i];
        } else {
            if (i + 1 == argc || !parse_option(name, argv[i + 1], &arguments)) return usage(name + " cannot be used");
            i++;
        }
    }
    if (arguments.artifact == nullptr) return usage("which artifact?");
    if ((arguments.latent != nullptr) != (arguments.output != nullptr))
        return usage("--latent and --output go together");

    hvdc_artifact *artifact = nullptr;
    hvdc_error error;
    if (hvdc_artifact_open(arguments.artifact, &artifact, &error) != HVDC_E_OK) {
        (void)fprintf(stderr, "%s: %s (%s)\n", error.file, error.message, hvdc_code_meaning(error.code));
        return 1;
    }
    const int kept = dup(STDOUT_FILENO);  // a library prints there
    if (kept < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
        (void)fprintf(stderr, "standard output cannot be kept apart: %s\n", strerror(errno));
        hvdc_artifact_close(artifact);
        return 1;
    }
    hvdc_decoder_facts facts{};
    hvdc_failure failure{};
    double seconds[2] = {0, 0};
    const bool good = check(artifact, arguments, &facts, seconds, &failure);
    hvdc_artifact_close(artifact);
    (void)fflush(stdout);
    if (dup2(kept, STDOUT_FILENO) < 0) return 1;
    (void)close(kept);
    if (!good) {
        (void)fprintf(stderr, "%s\n", failure.message);
        return 1;
    }
    print(facts, seconds[0], seconds[1]);
    return 0;
}
