#pragma once
// Optimizers, schedules, clipping, loss scaling, precision, the training step and its capture in one include.
#include "train/captured_step.h"
#include "train/clip.h"
#include "train/grad_scaler.h"
#include "train/optimizer.h"
#include "train/precision.h"
#include "train/schedule.h"
#include "train/step.h"
