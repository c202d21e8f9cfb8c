//! Memory that CPU and GPU share: dma-bufs.
