//! A model larger than memory is refused before its weights are read.

use ::engine::LoadError;
use model::gguf::{Gguf, Writer};
use orind_testing::engine;
use orind_testing::page_cache::resident;
use plan::DType;

/// A sparse file of 6 TiB: only the head is written.
#[test]
fn a_model_larger_than_memory_is_refused_before_it_is_read() {
    const LAYERS: u32 = 128;
    const WIDE: usize = 1 << 24;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let source = Gguf::open(orind_testing::data("models/tiny-llama-f16.gguf")).unwrap();
    let mut writer = Writer::new(dir.path().join("model.gguf"));
    for (key, value) in source.metadata().iter() {
        let value = match key {
            "llama.block_count" => LAYERS.into(),
            "llama.feed_forward_length" => (WIDE as u32).into(),
            _ => value.clone(),
        };
        writer.metadata(key, value).unwrap();
    }
    // Rotation factors are read on opening, and cannot be zero.
    let left_out = |name: &str| name.starts_with("blk.1.") || name == "rope_freqs.weight";
    for tensor in source.tensors().iter().filter(|tensor| !left_out(&tensor.name)) {
        let mut shape = tensor.shape.clone();
        match &*tensor.name {
            "blk.0.ffn_down.weight" => shape[1] = WIDE,
            "blk.0.ffn_gate.weight" | "blk.0.ffn_up.weight" => shape[0] = WIDE,
            _ => {}
        }
        let dtype = if tensor.dtype == DType::F16 { DType::F32 } else { tensor.dtype };
        match tensor.name.strip_prefix("blk.0.") {
            Some(name) => {
                for layer in 0..LAYERS {
                    writer.tensor(&format!("blk.{layer}.{name}"), &shape, dtype).unwrap();
                }
            }
            None => _ = writer.tensor(&tensor.name, &shape, dtype).unwrap(),
        }
    }
    // The writer never finishes, so the file exists until it is dropped.
    let begun = writer.begin().unwrap();
    let path = dir.path().join("huge.gguf");
    std::os::unix::fs::symlink(begun.unfinished(), &path).unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() > 1 << 42);
    let handle = engine::engine();
    match engine::load(&handle, engine::spec(path.to_str().unwrap(), "cpu")) {
        Err(LoadError::OutOfMemory(why)) => assert!(why.contains("weights"), "{why}"),
        other => panic!("{other:?}"),
    }
    let read = resident(&path, 1 << 30);
    assert!(read < 4096, "{read} pages of its first GiB were read");
    drop(begun);
}
