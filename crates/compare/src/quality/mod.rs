//! How well a model predicts a text, and what quantising has cost it: perplexity, and the divergence from
//! another model's distributions. Both mean what they mean in llama.cpp's `llama-perplexity`: [`text`] cuts
//! the text as it does, [`score`] has the numbers, [`run`] takes the logits from a device.

pub mod run;
pub mod score;
pub mod text;
