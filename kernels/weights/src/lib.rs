//! Memory-mapped safetensors
