#include "common/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <new>

#include "text/data_error.h"

namespace tern::apps {

int run(CLI::App& app, int argc, char** argv) {
  const auto complain = [&](const std::string& message) {
    std::fflush(stdout);
    fmt::print(stderr, "{}: {}\n", app.get_name(), message);
  };
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    complain(fmt::format("{} (--help lists the options)", error.what()));
    return 2;
  } catch (const text::DataError& error) {
    complain(error.what());
    return 2;
  } catch (const UsageError& error) {
    complain(error.what());
    return 2;
  } catch (const Error& error) {
    complain(error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    complain("out of memory: use a smaller --batch-size, or a smaller model");
    return 1;
  } catch (const std::exception& error) {
    complain(error.what());
    return 1;
  }
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "cpu, cuda, or auto: cuda where a GPU answers")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}))
      ->capture_default_str();
}

Device resolve_device(const std::string& device) {
  const int gpus = cuda_device_count();
  if (device == "cuda" && gpus == 0) {
#ifdef TERN_CUDA
    throw UsageError("--device cuda: no GPU answers; use --device cpu, or check nvidia-smi");
#else
    throw UsageError("--device cuda: this program was built without CUDA; configure with -DTERN_CUDA=ON, or use --device cpu");
#endif
  }
  return device == "cpu" || gpus == 0 ? cpu : cuda();
}

std::string describe(Device device) {
  if (device.type == DeviceType::cpu) return fmt::format("{} CPU thread{}", num_threads(), num_threads() == 1 ? "" : "s");
  return to_string(device);
}

void add_switch(CLI::App& command, const std::string& name, bool& value, const std::string& help) {
  command.add_option_function<std::string>(name, [&value](const std::string& text) {
            value = text.empty() || CLI::detail::to_flag_value(text) > 0;
          }, help)
      ->expected(0, 1)
      ->type_name("[True|False]")
      ->check([](const std::string& text) -> std::string {
        for (const char* known : {"true", "false", "1", "0", "yes", "no", "on", "off"})
          if (CLI::detail::to_lower(text) == known) return "";
        return text.empty() ? "" : fmt::format("expected True or False but got {}", text);
      })
      ->transform([](const std::string& text) { return CLI::detail::to_lower(text); });
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string duration(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

ProgressLine::ProgressLine() : is_terminal_(isatty(STDERR_FILENO) != 0) {}

bool ProgressLine::is_due() const { return seconds_now() - last_ >= (is_terminal_ ? 0.25 : 15); }

void ProgressLine::update(const std::string& text) {
  last_ = seconds_now();
  if (!is_terminal_) {
    fmt::print(stderr, "{}\n", text);
    return;
  }
  // Spaces cover what a longer line before has left.
  fmt::print(stderr, "\r{:<{}}", text, shown_);
  std::fflush(stderr);
  shown_ = text.size();
}

void ProgressLine::finish() {
  if (shown_ > 0) fmt::print(stderr, "\r{:<{}}\r", "", shown_);
  std::fflush(stderr);
  shown_ = 0;
}

void ProgressLine::print(const std::string& line) {
  finish();
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace tern::apps
