#pragma once
#include <string>

#include "backend/device.h"

namespace tern::backend {

/// Says that work queued on the device is lost, as where a collective was broken off because another process had ended: whoever waits for
/// the device, or queues a graph on it, gets an Error with this message from then on. Without it nobody would notice, since the kernels
/// behind the lost one run as if nothing had happened. Of several messages the first one counts, until they are cleared.
void mark_failed(Device device, std::string message);
/// Work that is queued from now on is sound.
void clear_failure(Device device);
/// Throws Error with the message where the device's work is lost.
void throw_if_failed(Device device);

}  // namespace tern::backend
