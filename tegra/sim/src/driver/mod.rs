//! The kernel side: nvmap and nvgpu as a program sees them.
