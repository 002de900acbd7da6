#pragma once
// Optimizers, schedules, clipping, loss scaling, precision and captured steps in one include.
#include "train/captured_step.h"
#include "train/clip.h"
#include "train/grad_scaler.h"
#include "train/optimizer.h"
#include "train/precision.h"
#include "train/schedule.h"
