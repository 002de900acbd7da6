#pragma once
#include <string>

#include "backend/device.h"

namespace tern::backend {

/// Marks work queued on the device as lost, as where a collective was broken off because another process had ended: waits for the device,
/// and launches of graphs on it, throw an Error with this message from then on. The loss would go unnoticed otherwise, since the kernels
/// after the lost one run all the same. Of several messages the first one counts, until they are cleared.
void mark_failed(Device device, std::string message);
/// Work that is queued from now on is sound.
void clear_failure(Device device);
/// Throws Error with the message where the device's work is lost.
void throw_if_failed(Device device);

}  // namespace tern::backend
