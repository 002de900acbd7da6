#pragma once
#include "backend/device.h"

namespace tern::backend {

/// A moment in a stream's work: it is past when all that was queued before is done. For measuring without a wait; whoever marks
/// it also forgets it.
void* mark(Cpu, Stream stream);
void* mark(Cuda, Stream stream);
/// Waits for the later one.
double milliseconds_between(Cpu, const void* earlier, const void* later);
double milliseconds_between(Cuda, const void* earlier, const void* later);
void forget(Cpu, void* moment) noexcept;
void forget(Cuda, void* moment) noexcept;

}  // namespace tern::backend
