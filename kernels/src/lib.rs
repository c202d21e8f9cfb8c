//! `orind-kernels`: the CUDA kernels, their prebuilt machine code and its loader.
