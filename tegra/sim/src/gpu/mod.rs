//! The GPU: host, copy engine and the front of the compute engine.
