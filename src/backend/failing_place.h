#pragma once
#include <string>

namespace tern::backend {

/// Function that names the module whose forward runs, `blocks.0.fc (Linear)`, or returns "": `fail` adds it to its messages. Modules belong
/// to higher layers, which set this before main runs (autodiff/anomaly.cpp) and never again; null in a program without them.
using FailingPlace = std::string (*)();
inline constinit FailingPlace failing_place = nullptr;

}  // namespace tern::backend
