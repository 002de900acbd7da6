#pragma once
#include <string>

#include "backend/device.h"

namespace tern::backend {

/// Marks work queued on the device as lost, for example after a collective was aborted because another process ended: from then on, waits
/// for the device and launches of graphs on it throw Error with this message. The loss would otherwise go unnoticed, since later kernels
/// still run. The first of several messages counts, until they are cleared.
void mark_failed(Device device, std::string message);
/// Clears the failure: work queued from now on is valid.
void clear_failure(Device device);
/// Throws Error with the message if the device's work is lost.
void throw_if_failed(Device device);

}  // namespace tern::backend
