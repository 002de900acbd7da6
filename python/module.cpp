// tern._core, the extension. The package tern (python/tern) gives its parts their places.
#include "modules.h"

NB_MODULE(_core, m) {
  using namespace tern::python;
  m.doc() = "Tensors, autodiff, modules and training of tern, by nanobind.";
  bind_errors(m);
  bind_types(m);
  auto tensor = bind_tensor(m);
  bind_memory(m, tensor);
  bind_indexing(tensor);
  bind_operators(tensor);
  bind_autograd(m);
  bind_compiled(m);
  bind_pointwise(m);
  bind_shapes(m);
  bind_reductions(m);
  bind_products(m);
  bind_losses(m);
  bind_factories(m);

  // With an underscore, as tern.nn and its kind are modules of Python, which take these over and add to them.
  nb::module_ nn = m.def_submodule("_nn", "Modules.");
  bind_modules(nn);
  bind_layers(nn);
  bind_images(m, nn);
  bind_models(nn);
  nb::module_ init = nn.def_submodule("init", "Initialisers: each fills a tensor in place and returns it.");
  bind_init(init);
  nb::module_ train = m.def_submodule("_train", "Optimizers and the training step.");
  bind_training(train);
  nb::module_ io = m.def_submodule("_io", "Files of tensors."), models = m.def_submodule("_models", "Models of others.");
  bind_files(io, models);
  bind_state(m);
  bind_copies(m, nn, tensor);

  publish(m, "", &tensor);
  publish(nn, "nn.");
  publish(init, "nn.init.");
  publish(train, "train.");
  nb::module_ schedule = nb::cast<nb::module_>(train.attr("schedule"));
  publish(schedule, "train.schedule.");
  publish(io, "io.");
  publish(models, "models.");
}
