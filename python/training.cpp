// Optimizers, the training step, schedules and averages (train/).
#include <limits>
#include <utility>

#include "names.h"
#include "train/ema.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/step.h"

namespace tern::python {

namespace {

void bind_optimizer(nb::module_& m) {
  nb::class_<train::Optimizer>(m, "Optimizer")
      .def(
          "step", [](train::Optimizer& optimizer) { optimizer.step(); }, Released(), "One update from the gradients as they are.")
      .def("zero_grad", &train::Optimizer::zero_grad, Released())
      .def("set_lr", &train::Optimizer::set_lr, "lr"_a, Released(), "Sets every group's learning rate.")
      .def("set_lr_factor", &train::Optimizer::set_lr_factor, "factor"_a, Released(),
           "Sets each group's rate to its first one times a factor.")
      .def(
          "lr", [](const train::Optimizer& optimizer, std::size_t group) { return optimizer.lr(group); }, "group"_a = 0,
          "The learning rate of a group on the device, f32 ().")
      .def(
          "steps", [](const train::Optimizer& optimizer) { return optimizer.steps(); }, "The number of steps so far on the device, f32 ().")
      .def("parameters", &train::Optimizer::parameters)
      .def(
          "state", [](train::Optimizer& optimizer, const NamedTensors& names) { return to_dict(optimizer.state(names.all)); },
          "names"_a = NamedTensors(),
          "The state for a checkpoint, by the parameters' names in `names`, as of named_parameters(). The tensors are views of the "
          "optimizer's own\n"
          "memory: io.load_safetensors_into restores it.")
      .def("__reduce__",
           [](nb::handle self) -> nb::object {
             throw nb::type_error(
                 ("cannot pickle '" + nb::cast<std::string>(self.type().attr("__name__")) + "' object: pickle its state_dict()").c_str());
           })
      .def(
          "state_dict", [](train::Optimizer& optimizer) { return to_dict(optimizer.state()); },
          "The state by the parameters' positions: views of the optimizer's own memory.")
      .def(
          "load_state_dict",
          [](train::Optimizer& optimizer, const NamedTensors& state, bool strict) {
            return load_state("load_state_dict", optimizer.state(), state, strict);
          },
          "state"_a, "strict"_a = true, Released(),
          "Copies a state_dict() into this optimizer, all of it or nothing. Error for names that differ, unless strict is False. Returns "
          "the names that were missing and those that were unexpected.");
}

/// Binds the optimizer of a rule, whose options, names and members, are keywords.
template <class Options, class... T>
void rule(nb::module_& m, const char* name, std::pair<const char*, T Options::*>... options) {
  using Of = train::OptimizerOf<Options>;
  const Options usual{};
  const auto made = [options...](T... values) {
    Options result{};
    ((result.*options.second = values), ...);
    return result;
  };
  nb::class_<Of, train::Optimizer>(m, name)
      .def(
          "__init__", [made](Of* self, const Tensors& parameters, T... values) { new (self) Of(parameters, made(values...)); },
          "parameters"_a, nb::kw_only(), (nb::arg(options.first) = usual.*options.second)...)
      .def(
          "add_group", [made](Of& self, const Tensors& parameters, T... values) { self.add_group({parameters, made(values...)}); },
          "parameters"_a, nb::kw_only(), (nb::arg(options.first) = usual.*options.second)..., "One more group, also between steps.");
}

template <class Options>
void adam(nb::module_& m, const char* name) {
  rule(m, name, std::pair("lr", &Options::lr), std::pair("beta1", &Options::beta1), std::pair("beta2", &Options::beta2),
       std::pair("eps", &Options::eps), std::pair("weight_decay", &Options::weight_decay));
}

void bind_rules(nb::module_& m) {
  using train::LionOptions, train::RMSpropOptions, train::SGDOptions;
  rule(m, "SGD", std::pair("lr", &SGDOptions::lr), std::pair("momentum", &SGDOptions::momentum),
       std::pair("weight_decay", &SGDOptions::weight_decay), std::pair("nesterov", &SGDOptions::nesterov));
  adam<train::AdamOptions>(m, "Adam");
  adam<train::AdamWOptions>(m, "AdamW");
  rule(m, "Lion", std::pair("lr", &LionOptions::lr), std::pair("beta1", &LionOptions::beta1), std::pair("beta2", &LionOptions::beta2),
       std::pair("weight_decay", &LionOptions::weight_decay));
  rule(m, "RMSprop", std::pair("lr", &RMSpropOptions::lr), std::pair("alpha", &RMSpropOptions::alpha),
       std::pair("eps", &RMSpropOptions::eps), std::pair("weight_decay", &RMSpropOptions::weight_decay),
       std::pair("momentum", &RMSpropOptions::momentum), std::pair("centered", &RMSpropOptions::centered));
  const train::MuonOptions muon{};
  const train::AdamWOptions adam{};
  nb::class_<train::Muon, train::Optimizer>(m, "Muon").def(
      "__init__",
      [](train::Muon* self, const Tensors& matrices, const Tensors& others, double lr, double momentum, bool nesterov, double weight_decay,
         int iterations, DType dtype, double adam_lr, double adam_weight_decay) {
        train::MuonOptions options{};
        options.lr = lr;
        options.momentum = momentum;
        options.nesterov = nesterov;
        options.weight_decay = weight_decay;
        options.iterations = iterations;
        options.dtype = dtype;
        new (self) train::Muon(matrices, options, others, {.lr = adam_lr, .weight_decay = adam_weight_decay});
      },
      "matrices"_a, "others"_a = Tensors(), nb::kw_only(), "lr"_a = muon.lr, "momentum"_a = muon.momentum, "nesterov"_a = muon.nesterov,
      "weight_decay"_a = muon.weight_decay, "iterations"_a = muon.iterations, "dtype"_a = muon.dtype, "adam_lr"_a = adam.lr,
      "adam_weight_decay"_a = adam.weight_decay);
}

void bind_plateau(nb::module_& m) {
  const train::PlateauOptions usual{};
  nb::class_<train::ReduceLROnPlateau>(
      m, "ReduceLROnPlateau", "optimizer.set_lr_factor(plateau.update(loss)): reduces the rate after measurements without an improvement.")
      .def(
          "__init__",
          [](train::ReduceLROnPlateau* self, double factor, std::int64_t patience, double threshold, bool is_relative, bool maximize,
             std::int64_t cooldown,
             double floor) { new (self) train::ReduceLROnPlateau({factor, patience, threshold, is_relative, maximize, cooldown, floor}); },
          nb::kw_only(), "factor"_a = usual.factor, "patience"_a = usual.patience, "threshold"_a = usual.threshold,
          "is_relative"_a = usual.is_relative, "maximize"_a = usual.maximize, "cooldown"_a = usual.cooldown, "floor"_a = usual.floor)
      .def("update", &train::ReduceLROnPlateau::update, "value"_a, "Takes a measurement. Returns the factor from now on.")
      .def("factor", &train::ReduceLROnPlateau::factor)
      .def("state", &train::ReduceLROnPlateau::state, "The state for a checkpoint, f64 (4).")
      .def("load", &train::ReduceLROnPlateau::load, "state"_a);
}

void bind_schedules(nb::module_& m) {
  namespace schedule = train::schedule;
  nb::module_ bound =
      m.def_submodule("schedule", "Learning-rate schedules: from the number of the update, counted from 1, to a factor of the peak rate.");
  bound.def("constant", &schedule::constant, "step"_a);
  bound.def("linear_warmup", &schedule::linear_warmup, "step"_a, "warmup"_a);
  bound.def("linear", &schedule::linear, "step"_a, "warmup"_a, "total"_a, "floor"_a = 0);
  bound.def("wsd", &schedule::wsd, "step"_a, "warmup"_a, "total"_a, "decay"_a, "floor"_a = 0);
  bound.def("one_cycle", &schedule::one_cycle, "step"_a, "warmup"_a, "total"_a, "start"_a = 1.0 / 25, "end"_a = 1.0 / 25 * 1e-4);
  bound.def("cosine", &schedule::cosine, "step"_a, "warmup"_a, "total"_a, "floor"_a = 0);
  bound.def("inverse_sqrt", &schedule::inverse_sqrt, "step"_a, "warmup"_a);
}

}  // namespace

void bind_training(nb::module_& m) {
  bind_optimizer(m);
  bind_rules(m);
  bind_plateau(m);
  bind_schedules(m);
  constexpr double unbounded = std::numeric_limits<double>::infinity();
  nb::class_<train::GradScaler>(m, "GradScaler")
      .def(
          "__init__",
          [](train::GradScaler* self, double scale, double growth, double backoff, std::int64_t interval, const DeviceLike& device) {
            new (self) train::GradScaler({scale, growth, backoff, interval}, device.get());
          },
          nb::kw_only(), "scale"_a = 65536, "growth"_a = 2, "backoff"_a = 0.5, "interval"_a = 2000, "device"_a = nb::none())
      .def_prop_ro("scale", [](const train::GradScaler& scaler) { return scaler.scale(); });
  m.def(
      "update",
      [](const Tensor& loss, train::Optimizer& optimizer, double max_norm, train::GradScaler* scaler) {
        return maybe(train::update(loss, optimizer, {.max_norm = max_norm, .scaler = scaler}));
      },
      "loss"_a, "optimizer"_a, "max_norm"_a = unbounded, nb::arg("scaler").none() = nb::none(), Released(),
      "The training step once the loss is known: zero_grad, backward, clipping, the optimizer's update. Returns the norm of the gradients "
      "before\n"
      "they were clipped, f32 (); None where neither max_norm nor a scaler asks for it.");
  m.def(
      "accumulate", [](const Tensor& loss, train::GradScaler* scaler) { train::accumulate(loss, {.scaler = scaler}); }, "loss"_a,
      nb::arg("scaler").none() = nb::none(), Released(),
      "Adds the gradients of a part's share of the loss; optimizer.zero_grad() before the first.");
  m.def(
      "apply",
      [](train::Optimizer& optimizer, double max_norm, train::GradScaler* scaler) {
        return maybe(train::apply(optimizer, {.max_norm = max_norm, .scaler = scaler}));
      },
      "optimizer"_a, "max_norm"_a = unbounded, nb::arg("scaler").none() = nb::none(), Released(),
      "Clipping and the optimizer's update, when all parts are accumulated; returns what update does.");
  m.def("clip_grad_norm", &train::clip_grad_norm, "parameters"_a, "max_norm"_a, "error_if_nonfinite"_a = false, Released());
  nb::class_<train::Ema>(m, "Ema")
      .def(
          "__init__",
          [](train::Ema* self, const nn::Module& module, double decay, bool warmup) { new (self) train::Ema(module, {decay, warmup}); },
          "module"_a, nb::kw_only(), "decay"_a = 0.999, "warmup"_a = true)
      .def("update", &train::Ema::update, Released(), "After an optimizer's step.")
      .def(
          "averages", [](const train::Ema& ema) { return to_dict(ema.averages()); },
          "By the parameters' names, as a file of the model has them.");
}

}  // namespace tern::python
