#!/bin/bash
TRT_VER="10.14.1.48"
CUDA_VER="13.1" # 13.1.0
CUBLAS_VER=$(echo computed)
