// Layers of nn: linear, embedding, norms, activations, convolutions, recurrent modules; ops of images.
#include "nn/layers.h"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "modules.h"
#include "names.h"
#include "nn/convolution.h"
#include "nn/recurrent.h"
#include "ops/conv.h"

namespace tern::python {

namespace {

nn::Size2d size2d(const Size& size) {
  const auto [height, width] = both(size);
  return {height, width};
}

void bind_linear(nb::module_& m) {
  nb::class_<nn::Linear, nn::Module> linear(m, "Linear", nb::is_final());
  linear.def(
      "__init__",
      [](nn::Linear* self, std::int64_t in, std::int64_t out, bool bias, const DeviceLike& device) {
        new (self) nn::Linear(in, out, bias, device.get());
      },
      "in_features"_a, "out_features"_a, "bias"_a = true, "device"_a = nb::none());
  takes_tensor(linear);
  tensor_property(linear, "weight", &nn::Linear::weight, "(out, in)");
  tensor_property(linear, "bias", &nn::Linear::bias, "(out), or None");
  arguments_of(linear, [](const nn::Linear& x, nb::dict& a) {
    if (!x.weight.defined()) fail("pickle", "expected a Linear with its weight but got a quantized one");
    a["in_features"] = x.weight.size(1);
    a["out_features"] = x.weight.size(0);
    a["bias"] = x.bias.defined();
  });

  nb::class_<nn::Embedding, nn::Module> embedding(m, "Embedding", nb::is_final());
  embedding.def(
      "__init__",
      [](nn::Embedding* self, std::int64_t count, std::int64_t width, const DeviceLike& device) {
        new (self) nn::Embedding(count, width, device.get());
      },
      "count"_a, "width"_a, "device"_a = nb::none());
  takes_tensor(embedding);
  tensor_property(embedding, "weight", &nn::Embedding::weight, "(count, width)");
  arguments_of(embedding, [](const nn::Embedding& x, nb::dict& a) {
    if (!x.weight.defined()) fail("pickle", "expected an Embedding with its weight but got a quantized one");
    a["count"] = x.weight.size(0);
    a["width"] = x.weight.size(1);
  });
}

void bind_norms(nb::module_& m) {
  nb::class_<nn::Norm, nn::Module> norm(m, "Norm");
  norm.def(
      "__init__",
      [](nn::Norm* self, const Choice<nn::NormKind>& kind, std::int64_t width, double eps, bool bias, const DeviceLike& device) {
        new (self) nn::Norm(kind, width, {eps, bias, device.get()});
      },
      "kind"_a, "width"_a, "eps"_a = 1e-5, "bias"_a = true, "device"_a = nb::none());
  takes_tensor(norm);
  tensor_property(norm, "weight", &nn::Norm::weight, "(width)");
  tensor_property(norm, "bias", &nn::Norm::bias, "(width), or None");
  nb::class_<nn::LayerNorm, nn::Norm> layer_norm(m, "LayerNorm", nb::is_final());
  layer_norm.def(
      "__init__",
      [](nn::LayerNorm* self, std::int64_t width, double eps, bool bias, const DeviceLike& device) {
        new (self) nn::LayerNorm(width, {eps, bias, device.get()});
      },
      "width"_a, "eps"_a = 1e-5, "bias"_a = true, "device"_a = nb::none());
  nb::class_<nn::RMSNorm, nn::Norm> rms_norm(m, "RMSNorm", nb::is_final());
  rms_norm.def(
      "__init__",
      [](nn::RMSNorm* self, std::int64_t width, double eps, const DeviceLike& device) {
        new (self) nn::RMSNorm(width, {.eps = eps, .device = device.get()});
      },
      "width"_a, "eps"_a = 1e-5, "device"_a = nb::none());
  arguments_of(norm, [](const nn::Norm& x, nb::dict& a) {
    a["kind"] = name_of(x.kind);
    a["width"] = x.weight.defined() ? x.weight.size(0) : 1;
    a["eps"] = x.eps;
    a["bias"] = x.bias.defined();
  });
  arguments_of(layer_norm, [](const nn::LayerNorm& x, nb::dict& a) {
    a["width"] = x.weight.size(0);
    a["eps"] = x.eps;
    a["bias"] = x.bias.defined();
  });
  arguments_of(rms_norm, [](const nn::RMSNorm& x, nb::dict& a) {
    a["width"] = x.weight.size(0);
    a["eps"] = x.eps;
  });

  nb::class_<nn::BatchNorm, nn::Module> batch_norm(m, "BatchNorm");
  takes_tensor(batch_norm);
  tensor_property(batch_norm, "weight", &nn::BatchNorm::weight, "(C), or None");
  tensor_property(batch_norm, "bias", &nn::BatchNorm::bias, "(C), or None");
  tensor_property(batch_norm, "running_mean", &nn::BatchNorm::running_mean, "(C), or None");
  tensor_property(batch_norm, "running_var", &nn::BatchNorm::running_var, "(C), or None");
  const auto of_images = [&]<class M>(const char* name, M*) {
    nb::class_<M, nn::BatchNorm> bound(m, name, nb::is_final());
    bound.def(
        "__init__",
        [](M* self, std::int64_t channels, double eps, double momentum, bool affine, bool tracks_running, const DeviceLike& device) {
          new (self) M(channels, {eps, momentum, affine, tracks_running, device.get()});
        },
        "channels"_a, "eps"_a = 1e-5, "momentum"_a = 0.1, "affine"_a = true, "tracks_running"_a = true, "device"_a = nb::none());
    arguments_of(bound, [](const M& x, nb::dict& a) {
      a["channels"] = x.channels();
      a["eps"] = x.eps;
      a["momentum"] = x.momentum;
      a["affine"] = x.weight.defined();
      a["tracks_running"] = x.running_mean.defined();
    });
  };
  of_images("BatchNorm1d", static_cast<nn::BatchNorm1d*>(nullptr));
  of_images("BatchNorm2d", static_cast<nn::BatchNorm2d*>(nullptr));

  nb::class_<nn::GroupNorm, nn::Module> group_norm(m, "GroupNorm", nb::is_final());
  group_norm.def(
      "__init__",
      [](nn::GroupNorm* self, std::int64_t groups, std::int64_t channels, double eps, bool affine, const DeviceLike& device) {
        new (self) nn::GroupNorm(groups, channels, {eps, affine, device.get()});
      },
      "groups"_a, "channels"_a, "eps"_a = 1e-5, "affine"_a = true, "device"_a = nb::none());
  takes_tensor(group_norm);
  tensor_property(group_norm, "weight", &nn::GroupNorm::weight, "(C), or None");
  tensor_property(group_norm, "bias", &nn::GroupNorm::bias, "(C), or None");
  arguments_of(group_norm, [](const nn::GroupNorm& x, nb::dict& a) {
    a["groups"] = x.groups;
    a["channels"] = x.channels();
    a["eps"] = x.eps;
    a["affine"] = x.weight.defined();
  });
}

void bind_activations(nb::module_& m) {
  const auto plain = [&]<class M>(const char* name, M*) {
    nb::class_<M, nn::Module> bound(m, name, nb::is_final());
    bound.def(nb::init<>());
    takes_tensor(bound);
    picklable(bound, [](const nn::Module&, nb::dict&) {});
  };
  plain("ReLU", static_cast<nn::ReLU*>(nullptr));
  plain("SiLU", static_cast<nn::SiLU*>(nullptr));
  plain("Tanh", static_cast<nn::Tanh*>(nullptr));
  plain("Sigmoid", static_cast<nn::Sigmoid*>(nullptr));
  plain("Identity", static_cast<nn::Identity*>(nullptr));
  const auto with_number = [&]<class M, class F>(const char* name, const char* number, double given, M*, F arguments) {
    nb::class_<M, nn::Module> bound(m, name, nb::is_final());
    bound.def(nb::init<double>(), nb::arg(number) = given);
    takes_tensor(bound);
    arguments_of(bound, arguments);
  };
  with_number("LeakyReLU", "negative_slope", 0.01, static_cast<nn::LeakyReLU*>(nullptr),
              [](const nn::LeakyReLU& x, nb::dict& a) { a["negative_slope"] = x.slope; });
  with_number("ELU", "alpha", 1, static_cast<nn::ELU*>(nullptr), [](const nn::ELU& x, nb::dict& a) { a["alpha"] = x.alpha; });
  with_number("Softplus", "beta", 1, static_cast<nn::Softplus*>(nullptr), [](const nn::Softplus& x, nb::dict& a) { a["beta"] = x.beta; });
  nb::class_<nn::Dropout, nn::Module> dropout(m, "Dropout", nb::is_final());
  dropout.def(nb::init<double>(), "p"_a).def_rw("p", &nn::Dropout::p);
  takes_tensor(dropout);
  arguments_of(dropout, [](const nn::Dropout& x, nb::dict& a) { a["p"] = x.p; });
  nb::class_<nn::GELU, nn::Module> gelu(m, "GELU", nb::is_final());
  gelu.def(nb::init<bool>(), "tanh"_a = false);
  takes_tensor(gelu);
  arguments_of(gelu, [](const nn::GELU& x, nb::dict& a) { a["tanh"] = x.tanh; });
  nb::class_<nn::Flatten, nn::Module> flatten(m, "Flatten", nb::is_final());
  flatten.def(nb::init<int, int>(), "first"_a = 1, "last"_a = -1);
  takes_tensor(flatten);
  arguments_of(flatten, [](const nn::Flatten& x, nb::dict& a) {
    a["first"] = x.first;
    a["last"] = x.last;
  });
}

/// The arguments of a convolution, whose sizes are numbers or pairs.
template <class M, class Kernel>
void set_convolution(nb::dict& a, const M& x, const Kernel& kernel) {
  a["in_channels"] = x.weight.size(1) * x.options.groups;
  a["out_channels"] = x.weight.size(0);
  a["kernel"] = nb::cast(kernel);
  a["stride"] = nb::cast(x.options.stride);
  a["padding"] = nb::cast(x.options.padding);
  a["dilation"] = nb::cast(x.options.dilation);
  a["groups"] = x.options.groups;
  a["bias"] = x.bias.defined();
}

void bind_convolutions(nb::module_& m) {
  nb::class_<nn::Conv2d, nn::Module> conv2d(m, "Conv2d", nb::is_final());
  conv2d.def(
      "__init__",
      [](nn::Conv2d* self, std::int64_t in, std::int64_t out, const Size& kernel, const Size& stride, const Size& padding,
         const Size& dilation, std::int64_t groups, bool bias, const DeviceLike& device) {
        new (self) nn::Conv2d(in, out, size2d(kernel), {size2d(stride), size2d(padding), size2d(dilation), groups, bias, device.get()});
      },
      "in_channels"_a, "out_channels"_a, "kernel"_a, "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, "groups"_a = 1, "bias"_a = true,
      "device"_a = nb::none());
  takes_tensor(conv2d);
  tensor_property(conv2d, "weight", &nn::Conv2d::weight, "(out, in / groups, kh, kw)");
  tensor_property(conv2d, "bias", &nn::Conv2d::bias, "(out), or None");
  arguments_of(conv2d, [](const nn::Conv2d& x, nb::dict& a) { set_convolution(a, x, std::array{x.weight.size(2), x.weight.size(3)}); });

  nb::class_<nn::Conv1d, nn::Module> conv1d(m, "Conv1d", nb::is_final());
  conv1d.def(
      "__init__",
      [](nn::Conv1d* self, std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
         std::int64_t dilation, std::int64_t groups, bool bias,
         const DeviceLike& device) { new (self) nn::Conv1d(in, out, kernel, {stride, padding, dilation, groups, bias, device.get()}); },
      "in_channels"_a, "out_channels"_a, "kernel"_a, "stride"_a = 1, "padding"_a = 0, "dilation"_a = 1, "groups"_a = 1, "bias"_a = true,
      "device"_a = nb::none());
  takes_tensor(conv1d);
  tensor_property(conv1d, "weight", &nn::Conv1d::weight, "(out, in / groups, k)");
  tensor_property(conv1d, "bias", &nn::Conv1d::bias, "(out), or None");
  arguments_of(conv1d, [](const nn::Conv1d& x, nb::dict& a) { set_convolution(a, x, x.weight.size(2)); });

  const auto pool = [&]<class M>(const char* name, M*) {
    nb::class_<M, nn::Module> bound(m, name, nb::is_final());
    bound.def(
        "__init__",
        [](M* self, const Size& kernel, const Size& stride, const Size& padding) {
          new (self) M(size2d(kernel), {size2d(stride), size2d(padding)});
        },
        "kernel"_a, "stride"_a = 0, "padding"_a = 0);
    takes_tensor(bound);
    arguments_of(bound, [](const M& x, nb::dict& a) {
      a["kernel"] = nb::cast(x.options.kernel);
      a["stride"] = nb::cast(x.options.stride);
      a["padding"] = nb::cast(x.options.padding);
    });
  };
  pool("MaxPool2d", static_cast<nn::MaxPool2d*>(nullptr));
  pool("AvgPool2d", static_cast<nn::AvgPool2d*>(nullptr));
}

/// The constructor of LSTM and GRU.
template <class M>
void recurrent(nb::class_<M, nn::Module>& bound) {
  bound.def(
      "__init__",
      [](M* self, std::int64_t in, std::int64_t hidden, std::int64_t layers, bool bias, bool bidirectional, bool batch_first,
         double dropout,
         const DeviceLike& device) { new (self) M(in, hidden, {layers, bias, bidirectional, batch_first, dropout, device.get()}); },
      "in_features"_a, "hidden"_a, nb::kw_only(), "layers"_a = 1, "bias"_a = true, "bidirectional"_a = false, "batch_first"_a = true,
      "dropout"_a = 0, "device"_a = nb::none());
  arguments_of(bound, [](const M& x, nb::dict& a) {
    a["in_features"] = x.layers.in;
    a["hidden"] = x.layers.hidden;
    a["layers"] = x.layers.options.layers;
    a["bias"] = x.layers.options.bias;
    a["bidirectional"] = x.layers.options.bidirectional;
    a["batch_first"] = x.layers.options.batch_first;
    a["dropout"] = x.layers.options.dropout;
  });
}

void bind_recurrent(nb::module_& m) {
  nb::class_<nn::LSTM, nn::Module> lstm(m, "LSTM", nb::is_final(),
                                        "y, (h, c) = lstm(x) of x (B, T, in); lstm(x, (h, c)) goes on from a state.");
  recurrent(lstm);
  const auto run_lstm = [](const nn::LSTM& module, const Tensor& x, const std::optional<std::pair<Tensor, Tensor>>& state) {
    const nn::LSTMResult result = module(x, state ? LSTMState{state->first, state->second} : LSTMState());
    return std::pair(result.y, std::pair(result.state.h, result.state.c));
  };
  lstm.def("__call__", run_lstm, "x"_a, "state"_a = nb::none(), Released())
      .def("forward", run_lstm, "x"_a, "state"_a = nb::none(), Released());

  nb::class_<nn::GRU, nn::Module> gru(m, "GRU", nb::is_final(), "y, h = gru(x) of x (B, T, in); gru(x, h) goes on from a state.");
  recurrent(gru);
  const auto run_gru = [](const nn::GRU& module, const Tensor& x, const MaybeTensor& h) {
    const nn::GRUResult result = module(x, given(h));
    return std::pair(result.y, result.h);
  };
  gru.def("__call__", run_gru, "x"_a, "h"_a = nb::none(), Released()).def("forward", run_gru, "x"_a, "h"_a = nb::none(), Released());
}

}  // namespace

void bind_layers(nb::module_& m) {
  bind_linear(m);
  bind_norms(m);
  bind_activations(m);
  bind_convolutions(m);
  bind_recurrent(m);
}

void bind_images(nb::module_& m, nb::module_& nn_) {
  m.def(
      "conv_transpose2d",
      [](const Tensor& x, const Tensor& weight, const MaybeTensor& bias, const Size& stride, const Size& padding,
         const Size& output_padding, const Size& dilation, std::int64_t groups) {
        return conv_transpose2d(x, weight, given(bias), {both(stride), both(padding), both(output_padding), both(dilation), groups});
      },
      "x"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = 1, "padding"_a = 0, "output_padding"_a = 0, "dilation"_a = 1, "groups"_a = 1,
      Released());
  m.def(
      "upsample_bilinear",
      [](const Tensor& x, const Size& size, bool align_corners) { return upsample_bilinear(x, both(size), align_corners); }, "x"_a,
      "size"_a, "align_corners"_a = false, Released());
  const auto adaptive = [&](const char* name, Tensor (*f)(const Tensor&, const std::array<std::int64_t, 2>&)) {
    m.def(name, [f](const Tensor& x, const Size& size) { return f(x, both(size)); }, "x"_a, "size"_a, Released());
  };
  adaptive("adaptive_avg_pool2d", &adaptive_avg_pool2d);
  adaptive("adaptive_max_pool2d", &adaptive_max_pool2d);

  nb::class_<nn::ConvTranspose2d, nn::Module> transposed(nn_, "ConvTranspose2d", nb::is_final());
  transposed.def(
      "__init__",
      [](nn::ConvTranspose2d* self, std::int64_t in, std::int64_t out, const Size& kernel, const Size& stride, const Size& padding,
         const Size& output_padding, const Size& dilation, std::int64_t groups, bool bias, const DeviceLike& device) {
        new (self)
            nn::ConvTranspose2d(in, out, size2d(kernel),
                                {size2d(stride), size2d(padding), size2d(output_padding), size2d(dilation), groups, bias, device.get()});
      },
      "in_channels"_a, "out_channels"_a, "kernel"_a, "stride"_a = 1, "padding"_a = 0, "output_padding"_a = 0, "dilation"_a = 1,
      "groups"_a = 1, "bias"_a = true, "device"_a = nb::none());
  takes_tensor(transposed);
  tensor_property(transposed, "weight", &nn::ConvTranspose2d::weight, "(in, out / groups, kh, kw)");
  tensor_property(transposed, "bias", &nn::ConvTranspose2d::bias, "(out), or None");
  arguments_of(transposed, [](const nn::ConvTranspose2d& x, nb::dict& a) {
    a["in_channels"] = x.weight.size(0);
    a["out_channels"] = x.weight.size(1) * x.options.groups;
    a["kernel"] = nb::make_tuple(x.weight.size(2), x.weight.size(3));
    a["stride"] = nb::cast(x.options.stride);
    a["padding"] = nb::cast(x.options.padding);
    a["output_padding"] = nb::cast(x.options.output_padding);
    a["dilation"] = nb::cast(x.options.dilation);
    a["groups"] = x.options.groups;
    a["bias"] = x.bias.defined();
  });
  const auto pool = [&]<class M>(const char* name, M*) {
    nb::class_<M, nn::Module> bound(nn_, name, nb::is_final());
    bound.def("__init__", [](M* self, const Size& size) { new (self) M(size2d(size)); }, "size"_a);
    takes_tensor(bound);
    arguments_of(bound, [](const M& x, nb::dict& a) { a["size"] = nb::make_tuple(x.size[0], x.size[1]); });
  };
  pool("AdaptiveAvgPool2d", static_cast<nn::AdaptiveAvgPool2d*>(nullptr));
  pool("AdaptiveMaxPool2d", static_cast<nn::AdaptiveMaxPool2d*>(nullptr));
}

}  // namespace tern::python
