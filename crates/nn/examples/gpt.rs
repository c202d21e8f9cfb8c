//! A small character-level GPT, trained from scratch on this documentation: two blocks of causal
//! attention. Compares its held-out loss with bigram and trigram counts. `gpt [DEVICE] [STEPS]`.

#![expect(clippy::print_stdout, reason = "what an example is for")]

use std::collections::HashMap;
use std::env;
use std::error::Error;

use device::{Data, Device};
use nn::functions::{add, relu};
use nn::init::{Init, unit};
use nn::layers::{Embedding, Linear, MultiHead, Net};
use nn::loss::cross_entropy;
use nn::norm::layer_norm;
use nn::optimiser::{Moments, Optimiser};
use nn::{Failure, Tensor, Trainer};
use plan::DType;

const TEXT: [&str; 4] = [
    include_str!("../../../docs/simulator.md"),
    include_str!("../../../docs/performance.md"),
    include_str!("../../../docs/numerics.md"),
    include_str!("../../../docs/reliability.md"),
];
const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyz ,.";
const LETTERS: usize = ALPHABET.len();
const BATCH: usize = 16;
/// Letters per window.
const CONTEXT: usize = 32;
const WIDTH: usize = 48;
const HEADS: usize = 4;
const BLOCKS: usize = 2;

/// The text as letter numbers, with single spaces between words, and the length of the training
/// part.
pub(crate) fn text() -> (Vec<i32>, usize) {
    let lower = TEXT.concat().to_lowercase();
    let known = |letter: char| ALPHABET.find(letter).or_else(|| ALPHABET.find(' '));
    let mut letters: Vec<i32> = lower.chars().filter_map(known).map(|i| i as i32).collect();
    letters.dedup_by(|a, b| a == b && ALPHABET.as_bytes()[*a as usize] == b' ');
    let trained = letters.len() / 10 * 9;
    (letters, trained)
}

/// Held-out loss, in nats per letter, of n-gram counts of `order` letters; 0.1 is added to each
/// count.
pub(crate) fn counted(trained: &[i32], held_out: &[i32], order: usize) -> f64 {
    let mut counts: HashMap<&[i32], [f64; LETTERS]> = HashMap::new();
    for group in trained.windows(order) {
        let (&next, before) = (&group[order - 1], &group[..order - 1]);
        counts.entry(before).or_insert([0.1; LETTERS])[next as usize] += 1.0;
    }
    let loss = |group: &[i32]| {
        let row = counts.get(&group[..order - 1]).unwrap_or(&[0.1; LETTERS]);
        -(row[group[order - 1] as usize] / row.iter().sum::<f64>()).ln()
    };
    held_out.windows(order).map(loss).sum::<f64>() / (held_out.len() + 1 - order) as f64
}

fn norm(net: &mut Net, name: &str, x: Tensor) -> nn::Result {
    let [zero, one] = [0.0, 1.0].map(Init::Constant);
    let weight = net.parameter(&format!("{name}.weight"), &[WIDTH], one)?;
    let bias = net.parameter(&format!("{name}.bias"), &[WIDTH], zero)?;
    layer_norm(&mut net.g, x, 1, Some([weight, bias]), 1e-5)
}

/// Logits `[BATCH * CONTEXT, LETTERS]` of the next letter.
fn gpt(net: &mut Net) -> nn::Result {
    let letters = net.input("letters", DType::I32, &[BATCH, CONTEXT])?;
    let tokens = Embedding::new(net, "tokens", LETTERS, WIDTH)?;
    let places = net.parameter("places", &[CONTEXT, WIDTH], Init::Normal(0.1))?;
    let x = tokens.forward(net, letters)?;
    let mut x = add(&mut net.g, x, places)?;
    for block in 0..BLOCKS {
        let name = |part: &str| format!("{block}.{part}");
        let attention = MultiHead::new(net, &name("attention"), WIDTH, HEADS, true)?;
        let up = Linear::new(net, &name("up"), WIDTH, 4 * WIDTH)?;
        let down = Linear::new(net, &name("down"), 4 * WIDTH, WIDTH)?;
        let y = norm(net, &name("attention.norm"), x)?;
        let y = attention.forward(net, y)?;
        x = add(&mut net.g, x, y)?;
        let y = norm(net, &name("up.norm"), x)?;
        let y = up.forward(net, y)?;
        let y = relu(&mut net.g, y)?;
        let y = down.forward(net, y)?;
        x = add(&mut net.g, x, y)?;
    }
    let x = norm(net, "norm", x)?;
    let x = Linear::new(net, "out", WIDTH, LETTERS)?.forward(net, x)?;
    net.g.reshape(x, &[BATCH * CONTEXT, LETTERS])
}

pub(crate) fn trainer(device: &dyn Device) -> Result<Trainer, Failure> {
    let loss = |net: &mut Net| {
        let answer = gpt(net)?;
        let next = net.input("next", DType::I32, &[BATCH * CONTEXT])?;
        cross_entropy(&mut net.g, answer, next, 0.0)
    };
    Trainer::new(device, Optimiser::AdamW(Moments::new(0.003).with_decay(0.01)), 1, loss, gpt)
}

/// Trains on random windows of the text; returns the loss.
pub(crate) fn step(trainer: &mut Trainer, text: &[i32], number: usize) -> Result<f32, Failure> {
    let starts = unit(number as u64, BATCH).into_iter();
    let starts = starts.map(|u| (u * (text.len() - CONTEXT - 1) as f32) as usize);
    let windows: Vec<&[i32]> = starts.map(|start| &text[start..=start + CONTEXT]).collect();
    let part = |from: usize| windows.iter().flat_map(move |w| &w[from..from + CONTEXT]).copied();
    let [letters, next]: [Vec<i32>; 2] = [0, 1].map(|from| part(from).collect());
    trainer.train(&[("letters", Data::I32(&letters)), ("next", Data::I32(&next))])
}

/// Loss on `text`, in nats per letter, over adjacent windows; context does not cross windows.
pub(crate) fn loss(trainer: &mut Trainer, text: &[i32]) -> Result<f64, Failure> {
    let (mut sum, mut count) = (0.0, 0);
    let batches = (text.len() - 1) / (BATCH * CONTEXT);
    for from in (0..batches).map(|i| i * BATCH * CONTEXT) {
        let window = &text[from..=from + BATCH * CONTEXT];
        let answer = trainer.answer(&[("letters", Data::I32(&window[..BATCH * CONTEXT]))])?;
        for (logits, &next) in answer.chunks(LETTERS).zip(&window[1..]) {
            let all: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            sum += all.ln() - f64::from(logits[next as usize]);
            count += 1;
        }
    }
    Ok(sum / f64::from(count))
}

/// Generates text: samples letters by their probabilities.
fn write(trainer: &mut Trainer, start: &[i32], count: usize) -> Result<String, Failure> {
    let mut letters = start[..CONTEXT].to_vec();
    for u in unit(1, count) {
        let mut window = letters[letters.len() - CONTEXT..].to_vec();
        window.resize(BATCH * CONTEXT, 0);
        let answer = trainer.answer(&[("letters", Data::I32(&window))])?;
        let last = answer[(CONTEXT - 1) * LETTERS..].iter().take(LETTERS).map(|x| x.exp());
        let mut left = u * last.clone().sum::<f32>();
        let drawn = last.take_while(|weight| {
            left -= weight;
            left > 0.0
        });
        letters.push(drawn.count().min(LETTERS - 1) as i32);
    }
    Ok(letters.iter().map(|&i| char::from(ALPHABET.as_bytes()[i as usize])).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let word = |i: usize, default| words.get(i).map_or(default, String::as_str);
    let device = device::named(word(0, "cpu"), "auto", 0)?;
    let steps: usize = word(1, "2000").parse()?;
    let (text, trained) = text();
    let (trained, held_out) = text.split_at(trained);
    let mut trainer = trainer(&*device)?;
    for number in 0..steps {
        let loss = step(&mut trainer, trained, number)?;
        if number % 100 == 0 {
            println!("step {number}: loss {loss:.3}");
        }
    }
    println!("{}", write(&mut trainer, held_out, 200)?);
    let [pairs, triples] = [2, 3].map(|order| counted(trained, held_out, order));
    let own = loss(&mut trainer, held_out)?;
    println!("held-out loss {own:.3}; of pairs {pairs:.3}, of triples {triples:.3} nats a letter");
    Ok(())
}
