//! Quality of a model on a text, and its loss by quantisation: perplexity, and the KL divergence
//! from another model's distributions. Both are defined as in llama.cpp's `llama-perplexity`.
//! [`text`] cuts the text as it does, [`score`] computes the numbers, [`run`] gets the logits from
//! a device.

pub mod run;
pub mod score;
pub mod text;
