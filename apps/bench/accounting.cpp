#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "bench/commands.h"
#include "bench/cost_model.h"
#include "bench/step_case.h"
#include "bench/timing.h"
#include "common/program.h"
#include "common/training_settings.h"
#include "io/json_object.h"

namespace tern::bench {
namespace {

struct Options {
  std::string model = "XXL", arch = "gpt2", ranks = "1,2,4,8", json;
  std::int64_t vocab = 50257, length = 1024, width = 16384, ff = 53248, layers = 126, parameters = 0;
  double memory_gb = 80;
  Mesh mesh;
};

/// The sizes of a model.
struct Model {
  std::string text;
  double parameters = 0, width = 0, hidden = 0;
  double saved_per_token = 0;  ///< bytes of the GEMMs' inputs in 16 bits, saved for backward; 0: not counted
};

Model model_of(const Options& options) {
  const auto real = [](std::int64_t x) { return static_cast<double>(x); };
  Model model;
  if (options.model == "XXL") {
    // A simplified count for a very large model: two matrices a block, without attention, tables and head.
    model.parameters = 2 * real(options.layers) * real(options.width) * real(options.ff);
    model.text = fmt::format("{} blocks of two matrices {} x {}", options.layers, options.width, options.ff);
    model.width = real(options.width);
    model.hidden = real(options.ff);
    model.saved_per_token = 2 * real(options.layers) * (model.width + model.hidden);
  } else {
    StepCase c;
    c.model = options.model;
    c.arch = options.arch;
    c.vocab = options.vocab;
    c.length = options.length;
    const nn::DecoderLMOptions sizes = model_options(c, cpu);
    model.parameters = real(apps::count_parameters(sizes));
    model.text = fmt::format("{} {}, V {}, T {}", options.model, options.arch, options.vocab, options.length);
    model.width = real(sizes.width);
    model.hidden = real(sizes.ff);
  }
  if (options.parameters > 0) {
    model.parameters = real(options.parameters);
    model.text = "a model";
    model.saved_per_token = 0;
  }
  return model;
}

/// A number with four digits and a unit of a power of ten.
std::string amount(double x) {
  for (const auto& [unit, name] : {std::pair(1e12, "T"), {1e9, "G"}, {1e6, "M"}, {1e3, "k"}})
    if (x >= unit) return fmt::format("{:.4g} {}", x / unit, name);
  return fmt::format("{:.4g} ", x);
}

/// Rounds up to a whole number: 43.97 devices are 44. A tiny excess over a whole number is a rounding error.
double whole(double x) { return std::ceil(x * (1 - 1e-12)); }

void accounting(const Options& options) {
  RowFile rows(options.json);
  const Model model = model_of(options);
  const double bytes = state_bytes(model.parameters, Sharding::none, 1).after_step(), device = options.memory_gb * 1e9;
  const double devices = whole(bytes / device);
  fmt::print("{}: {} parameters\n", model.text,
             model.parameters >= 1e9 ? fmt::format("{:.2f} B", model.parameters / 1e9) : fmt::format("{:.2f} M", model.parameters / 1e6));
  fmt::print("  float32 weights, gradients and AdamW's two moments: {}B, the memory of {:.0f} devices of {:g} GB\n", amount(bytes), devices,
             options.memory_gb);
  io::JsonObject row;
  row.set("what", "model").set("model", model.text).set("parameters", model.parameters).set("bytes", bytes).set("devices", devices);
  if (model.saved_per_token > 0) {
    fmt::print("  saved for backward in 16 bits: {}B a token\n", amount(model.saved_per_token));
    row.set("saved_bytes_per_token", model.saved_per_token);
  }
  rows.add(row);

  fmt::print("\nof one rank, GiB            after init  before step   after step   sent in a step\n");
  for (const std::int64_t ranks : numbers(options.ranks))
    for (const Sharding sharding : shardings) {
      const int n = static_cast<int>(ranks);
      const StateBytes state = state_bytes(model.parameters, sharding, n);
      const double sent = sent_bytes(model.parameters, sharding, n);
      fmt::print("{:>5} ranks, {:<13} {:>12.2f} {:>12.2f} {:>12.2f} {:>16.2f}{}\n", ranks, name(sharding), state.after_init() / 0x1p30,
                 state.before_step() / 0x1p30, state.after_step() / 0x1p30, sent / 0x1p30,
                 state.after_step() > device ? fmt::format("  more than {:g} GB", options.memory_gb) : "");
      io::JsonObject each;
      each.set("what", "state").set("ranks", ranks).set("sharding", name(sharding)).set("after_init_bytes", state.after_init());
      each.set("before_step_bytes", state.before_step()).set("after_step_bytes", state.after_step()).set("sent_bytes", sent);
      rows.add(each);
    }

  const Mesh& mesh = options.mesh;
  const MeshBounds bounds = mesh_bounds(mesh, model.hidden);
  const double tokens = whole(bounds.tokens), all = tokens * static_cast<double>(mesh.fsdp * mesh.tensor);
  fmt::print("\nFSDP over X = {}, tensor parallelism over Y = {}, on {} and {} axes of {:.4g} GB/s, {:.4g} TFLOP/s a device:\n", mesh.fsdp,
             mesh.tensor, mesh.fsdp_axes, mesh.tensor_axes, mesh.bandwidth / 1e9, mesh.flops / 1e12);
  fmt::print("  compute-bound above C / (Y W M_X) = {:.1f} tokens a device: {:.0f}, {:.0f} in all\n", bounds.tokens, tokens, all);
  fmt::print("  and up to Y = F W M_Y / C = {:.1f} ranks of tensor parallelism for F = {:.0f}: {}\n", bounds.tensor, model.hidden,
             static_cast<double>(mesh.tensor) <= bounds.tensor ? "Y is below" : "Y is above, and activations take longer than computing");
  io::JsonObject bound;
  bound.set("what", "mesh").set("fsdp", mesh.fsdp).set("tensor_parallel", mesh.tensor).set("tokens_per_device", bounds.tokens);
  rows.add(bound.set("whole_tokens_per_device", tokens).set("tokens", all).set("most_tensor_parallel", bounds.tensor));
}

}  // namespace

void add_accounting(CLI::App& app) {
  auto* command = app.add_subcommand("accounting", "count memory and communication of a training on several devices, without any");
  const auto options = std::make_shared<Options>();
  std::vector<std::string> models = {"XXL"};
  for (const std::string& name : step_models()) models.push_back(name);
  add_value(*command, "--model", options->model,
            "XXL, blocks of two matrices alone, or " + list_of_step_models() + " with all that they have", apps::one_of(models), "NAME");
  add_value(*command, "--width", options->width, "of XXL, D", apps::whole_number(1, 1 << 24), "N");
  add_value(*command, "--ff", options->ff, "hidden units of XXL, F", apps::whole_number(1, 1 << 24), "N");
  add_value(*command, "--layers", options->layers, "blocks of XXL", apps::whole_number(1, 1 << 20), "N");
  add_value(*command, "--arch", options->arch, "of the others: gpt2, or llama (RMSNorm, rotary positions, SwiGLU, no biases)",
            apps::one_of({"gpt2", "llama"}), "NAME");
  add_value(*command, "--vocab", options->vocab, "size of their vocabulary", apps::whole_number(1, 10'000'000), "N");
  add_value(*command, "--length", options->length, "rows of their table of positions", apps::whole_number(1, 100'000'000), "N");
  apps::add_option(*command, "--parameters", options->parameters, "in place of the model's", apps::whole_number(1, 1'000'000'000'000'000),
                   "N");
  add_value(*command, "--ranks", options->ranks, "numbers of devices", list_of(apps::whole_number(1, 1'000'000)), "LIST");
  add_value(*command, "--memory-gb", options->memory_gb, "of a device, in 1e9 bytes", apps::real_number(1e-3, 1e9), "X");
  add_value(*command, "--fsdp", options->mesh.fsdp, "ranks of full sharding, X", apps::whole_number(1, 1'000'000), "N");
  add_value(*command, "--tensor-parallel", options->mesh.tensor, "ranks of tensor parallelism, Y", apps::whole_number(1, 1'000'000), "N");
  add_value(*command, "--fsdp-axes", options->mesh.fsdp_axes, "of the network, for full sharding, M_X", apps::whole_number(1, 16), "N");
  add_value(*command, "--tensor-axes", options->mesh.tensor_axes, "for tensor parallelism, M_Y", apps::whole_number(1, 16), "N");
  add_value(*command, "--bandwidth", options->mesh.bandwidth, "of an axis in bytes a second, both ways, W", apps::real_number(1, 1e18),
            "X");
  add_value(*command, "--flops", options->mesh.flops, "of a device, FLOP/s, C", apps::real_number(1, 1e21), "X");
  add_json_option(*command, options->json);
  command->callback([options] { accounting(*options); });
}

}  // namespace tern::bench
