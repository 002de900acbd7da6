// Images at other sizes: transposed convolutions, pooling to a size, interpolation (ops/conv.h, nn/convolution.h).
#include "copies.h"
#include "module_call.h"
#include "nn/convolution.h"
#include "ops/conv.h"

namespace tern::python {

static nn::Size2d pair(const Size& size) {
  const auto [height, width] = both(size);
  return {height, width};
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
        new (self) nn::ConvTranspose2d(in, out, pair(kernel),
                                       {pair(stride), pair(padding), pair(output_padding), pair(dilation), groups, bias, device.get()});
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
    bound.def("__init__", [](M* self, const Size& size) { new (self) M(pair(size)); }, "size"_a);
    takes_tensor(bound);
    arguments_of(bound, [](const M& x, nb::dict& a) { a["size"] = nb::make_tuple(x.size[0], x.size[1]); });
  };
  pool("AdaptiveAvgPool2d", static_cast<nn::AdaptiveAvgPool2d*>(nullptr));
  pool("AdaptiveMaxPool2d", static_cast<nn::AdaptiveMaxPool2d*>(nullptr));
}

}  // namespace tern::python
