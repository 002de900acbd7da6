#pragma once
// Modules and decoding in one include.
#include "nn/attention.h"
#include "nn/decoder_lm.h"
#include "nn/encoder_decoder.h"
#include "nn/generate.h"
#include "nn/init.h"
#include "nn/kv_cache.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "nn/parameter_buffer.h"
#include "nn/quantize.h"
#include "nn/transformer.h"
#include "nn/transformer_model.h"
