#pragma once
// Modules, optimizers and decoding in one include.
#include "nn/attention.h"
#include "nn/captured_step.h"
#include "nn/decoder_lm.h"
#include "nn/flat.h"
#include "nn/generate.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "nn/optim.h"
#include "nn/precision.h"
#include "nn/schedule.h"
#include "nn/transformer.h"
