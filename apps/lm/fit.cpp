#include <fmt/format.h>

#include <algorithm>

#include "backend/usable_memory.h"
#include "common/program.h"
#include "lm/training.h"
#include "profile/memory_history.h"
#include "trainer/terminal.h"

namespace tern::lm {

namespace {

/// The peak of the device's memory in two updates of so many rows, the second of which has all moments.
std::size_t peak(Options options, const PreparedData& data, Device device, std::int64_t rows) {
  options.batch_size = rows;
  options.accumulate = 1;
  train::Run run("tern-lm");
  Training training(options, data, device, run);
  reset_peak_memory(device);
  training.trainer().replay(2, [](std::int64_t) {});
  return memory_statistics(device).peak_allocated;
}

}  // namespace

void fit(const Options& options) {
  require_valid(options);
  const Device device = apps::use(options);
  apps::require_precision(precision(options), device);
  const PreparedData data = PreparedData::open(options.data);
  const nn::DecoderLMOptions shape = model_options(options, static_cast<std::int64_t>(data.tokenizer.vocab_size()), device);
  const std::int64_t params = apps::count_parameters(shape);
  apps::require_memory(params, device, "use a smaller --width, --layers or --vocab");
  const train::StopSignals signals;
  const std::size_t one = peak(options, data, device, 1), two = peak(options, data, device, 2);
  const std::size_t row = std::max<std::size_t>(two - std::min(one, two), 1), fixed = one - std::min(one, row);
  const std::uint64_t usable = with_backend(device, [&](auto dev) { return backend::usable_memory(dev, device); });
  const auto text = [](std::size_t bytes) { return profile::bytes_text(bytes); };
  apps::say("model    {:.2f} M parameters\n", static_cast<double>(params) / 1e6);
  apps::say("memory   {} of weights, gradients and moments, and {} of activations a row of {} tokens, {}\n", text(fixed), text(row),
            options.length, options.precision);
  apps::say("batch    of --batch-size {}: {}\n", options.batch_size, text(fixed + row * static_cast<std::size_t>(options.batch_size)));
  apps::say("fits     --batch-size {} in the {} of {}\n", usable > fixed ? (usable - fixed) / row : 0, text(usable),
            apps::describe(device));
}

}  // namespace tern::lm
