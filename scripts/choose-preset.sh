#!/usr/bin/env bash
# Prints the preset for this machine: "cuda" where a GPU can be seen and nvcc is installed, else "cpu".
set -euo pipefail

has_gpu() { [[ -e /dev/nvidia0 ]] || nvidia-smi -L >/dev/null 2>&1; }
has_nvcc() { [[ -n "${CUDACXX:-}" ]] || command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; }

if has_gpu && has_nvcc; then echo cuda; else echo cpu; fi
