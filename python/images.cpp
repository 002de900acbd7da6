// Images at other sizes: transposed convolutions, pooling to a size, interpolation (ops/convolution.h, nn/convolution.h).
#include "module_call.h"
#include "nn/convolution.h"
#include "ops/convolution.h"

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
      Released(), "x (B, C, H, W), weight (C, O / groups, kh, kw) -> (B, O, oh, ow): the gradient of conv2d with respect to its images.");
  m.def(
      "upsample_bilinear",
      [](const Tensor& x, const Size& size, bool align_corners) { return upsample_bilinear(x, both(size), align_corners); }, "x"_a,
      "size"_a, "align_corners"_a = false, Released(), "Bilinear interpolation of x (..., H, W) to a size, larger or smaller.");
  const auto adaptive = [&](const char* name, Tensor (*f)(const Tensor&, const std::array<std::int64_t, 2>&)) {
    m.def(
        name, [f](const Tensor& x, const Size& size) { return f(x, both(size)); }, "x"_a, "size"_a, Released(),
        "One number for each of oh x ow windows that cover x (B, C, H, W).");
  };
  adaptive("adaptive_avg_pool2d", &adaptive_avg_pool2d);
  adaptive("adaptive_max_pool2d", &adaptive_max_pool2d);

  nb::class_<nn::ConvTranspose2d, nn::Module> transposed(nn_, "ConvTranspose2d", nb::is_final(),
                                                         "(B, in, H, W) -> (B, out, oh, ow); weight (in, out / groups, kh, kw).");
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
  const auto pool = [&]<class M>(const char* name, const char* doc, M*) {
    nb::class_<M, nn::Module> bound(nn_, name, nb::is_final(), doc);
    bound.def("__init__", [](M* self, const Size& size) { new (self) M(pair(size)); }, "size"_a);
    takes_tensor(bound);
  };
  pool("AdaptiveAvgPool2d", "The mean of each of size windows that cover (B, C, H, W).", static_cast<nn::AdaptiveAvgPool2d*>(nullptr));
  pool("AdaptiveMaxPool2d", "The largest element of each of size windows that cover (B, C, H, W).",
       static_cast<nn::AdaptiveMaxPool2d*>(nullptr));
}

}  // namespace tern::python
