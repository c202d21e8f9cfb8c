//! Weights of the tiny models: a planted rule that uses all building blocks. Greedy decoding then has a clear winner
//! at every step, which tests of any device can check.
//!
//! **The rule.** Text tokens stand for the numbers modulo their count `n`, in a shuffled order. With `g(i)` the
//! number of the token at position `i` and `p(i) = g(i) + g(i - 1)`, the most likely next token is that of
//! `p(i) + p(i - 4) + SHIFT` (mod `n`); positions before the first count as the first. It depends on four earlier
//! tokens, so on attention in both layers.
//!
//! **How the model computes it.** A number `g` is written as a *code*: `CODES` points on the unit circle at the
//! angles `2 pi k g / n`, for well chosen frequencies `k`. Codes of different numbers are nearly orthogonal, and the
//! code of a sum is the pointwise complex product, which a gated feed-forward layer can form exactly:
//! `silu(x) y + silu(-x) (-y) = x y`. The residual has four slots for codes and one constant direction:
//!
//! 1. the embedding writes the token's code to slot A, and the constant;
//! 2. attention of layer 0 copies slot A of the previous position to B;
//! 3. its feed-forward layer writes A times B, the code of `p(i)`, to C;
//! 4. attention of layer 1 copies C of the position four before to D;
//! 5. its feed-forward layer writes C times D, turned by the code of `SHIFT`, to A, well above the token's own code.
//!    The output, tied to the embedding, compares A with all codes.
//!
//! Rotary embeddings make attention to a fixed distance possible: query and key read only the constant direction,
//! with phases that agree at that distance. Half of the heads do this, each for half of a code. The other half
//! attend softly to content in the whole context and add a little of it to the residual. So the logits, though not
//! their order, depend on every position. Special tokens have the code of some text token and the opposite mark,
//! which lowers their logits so that they are never generated.
//!
//! **Nothing is sparse.** A random orthogonal matrix rotates the residual, others rotate each head's values. Hidden
//! units are shuffled, norm weights vary (and are compensated), and every matrix has noise. The rule survives
//! four-bit quantisation.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use super::random::{below, between, bits, key, permutation, unit};
use super::shape::{Family, Shape};

/// Frequencies in a code.
const CODES: usize = 30;
/// Elements of a code.
const CODE: usize = 2 * CODES;

/// Offsets of the slots in the residual before its rotation.
const A: usize = 0;
const B: usize = CODE;
const C: usize = 2 * CODE;
const D: usize = 3 * CODE;
/// The constant direction.
const CONSTANT: usize = 4 * CODE;
/// Element that distinguishes special tokens from text.
const MARK: usize = CONSTANT + 1;
/// Start of the elements that contain only noise.
const SPARE: usize = MARK + 1;

/// Distance of attention, by layer.
const DISTANCE: [usize; 2] = [1, 4];
/// Added by the last layer, so that no token repeats forever.
const SHIFT: usize = 389;

/// Size of the constant in the embedding, relative to size 1 of each point of a code.
const CONSTANT_SIZE: f64 = 7.0;
/// Size of the mark in the embedding: positive for special tokens, negative for text. So all tokens have the same
/// energy, and the norm scales the constant equally.
const MARK_SIZE: f64 = 2.0;
/// Size of the opposite mark in the last residual.
const MARK_ANSWER: f64 = 12.0;
/// Size of the next token's code in the last residual.
const ANSWER: f64 = 4.0;
/// Logit of the next token, minus the common part of all logits.
const LOGIT: f64 = 12.0;
/// Output of a gate or an up unit for a code's point of size 1.
const UNIT_OUTPUT: f64 = 2.0;
/// Size of the noise in a matrix, relative to its planted values.
const NOISE: f64 = 0.1;

/// Size of the output of a soft head.
const SOFT: f64 = 0.02;
/// Elements of a head that read content: the pairs with the slowest rotation.
const CONTENT: usize = 16;

/// Values of all tensors of a planted model, by name.
pub(super) fn weights(shape: &Shape) -> BTreeMap<String, Vec<f32>> {
    let planter = Planter::new(shape);
    let mut tensors = BTreeMap::new();
    let mut energy = planter.embedding(&mut tensors);
    for layer in 0..DISTANCE.len() {
        energy = planter.attention(layer, energy, &mut tensors);
        energy = planter.feed_forward(layer, energy, &mut tensors);
    }
    planter.output_norm(energy, &mut tensors);
    if shape.family == Family::Llama {
        tensors.insert("rope_freqs.weight".to_owned(), shape.rope_factors());
    }
    tensors
}

/// Numbers that tokens stand for.
struct Numbers {
    /// Number of numbers, equal to the number of text tokens.
    count: usize,
    of_token: Vec<usize>,
    frequencies: Vec<usize>,
}

impl Numbers {
    fn new(shape: &Shape) -> Self {
        let count = shape.text_tokens;
        let key = key(&format!("{} numbers", shape.name));
        let mut of_token = permutation(key, count);
        // Special tokens use the number of a text token.
        of_token.extend((count..shape.vocab).map(|token| below(key, token as u64, count)));
        Self { count, of_token, frequencies: frequencies(count) }
    }

    /// Point of the code of `number` at frequency `index`.
    fn point(&self, number: usize, index: usize) -> [f64; 2] {
        let angle = TAU * ((self.frequencies[index] * number) % self.count) as f64;
        let (sin, cos) = (angle / self.count as f64).sin_cos();
        [cos, sin]
    }
}

/// The best of 64 random sets of frequencies: the one with the least similar codes.
fn frequencies(count: usize) -> Vec<usize> {
    let cosines: Vec<f64> = (0..count).map(|i| (TAU * i as f64 / count as f64).cos()).collect();
    let similarity = |set: &[usize]| {
        let product = |d: usize| set.iter().map(|k| cosines[k * d % count]).sum::<f64>();
        (1..=count / 2).map(product).fold(f64::NEG_INFINITY, f64::max)
    };
    let candidate = |index: u64| {
        let mut set = permutation(key("frequencies") ^ index, count / 2);
        set.truncate(CODES);
        set.iter_mut().for_each(|k| *k += 1);
        set
    };
    (0..64)
        .map(candidate)
        .min_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        .unwrap_or_default()
}

struct Matrix {
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn zero(rows: usize, columns: usize) -> Self {
        Self { columns, values: vec![0.0; rows * columns] }
    }

    fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.columns..][..self.columns]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.values[row * self.columns..][..self.columns]
    }

    fn set(&mut self, row: usize, column: usize, value: f64) {
        self.values[row * self.columns + column] = value;
    }

    /// A random matrix with orthonormal rows (Gram and Schmidt, twice for accuracy).
    fn orthogonal(key: u64, size: usize) -> Self {
        let mut matrix = Self::zero(size, size);
        for (index, value) in matrix.values.iter_mut().enumerate() {
            *value = unit(key, index as u64);
        }
        for row in 0..size {
            for _ in 0..2 {
                for earlier in 0..row {
                    let (before, after) = matrix.values.split_at_mut(row * size);
                    let other = &before[earlier * size..][..size];
                    let this = &mut after[..size];
                    let along = dot(other, this);
                    this.iter_mut().zip(other).for_each(|(v, o)| *v -= along * o);
                }
                let this = matrix.row_mut(row);
                let length = dot(this, this).sqrt();
                this.iter_mut().for_each(|v| *v /= length);
            }
        }
        matrix
    }

    fn times(&self, vector: &[f64]) -> Vec<f64> {
        (0..self.rows()).map(|row| dot(self.row(row), vector)).collect()
    }

    fn transposed(&self) -> Self {
        let mut result = Self::zero(self.columns, self.rows());
        for row in 0..self.rows() {
            for (column, value) in self.row(row).iter().enumerate() {
                result.set(column, row, *value);
            }
        }
        result
    }

    /// Adds noise in proportion to the root mean square of the values.
    fn add_noise(&mut self, key: u64) {
        let size = NOISE * (dot(&self.values, &self.values) / self.values.len() as f64).sqrt();
        for (index, value) in self.values.iter_mut().enumerate() {
            // A uniform number in -1..1 has a root mean square of 1 / sqrt(3).
            *value += size * 3_f64.sqrt() * unit(key, index as u64);
        }
    }

    fn to_f32(&self) -> Vec<f32> {
        self.values.iter().map(|v| *v as f32).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Key of a tensor's noise and random choices.
fn tensor_key(shape: &Shape, name: &str) -> u64 {
    key(&format!("{} {name}", shape.name))
}

struct Planter<'a> {
    shape: &'a Shape,
    numbers: Numbers,
    /// Rotates the slots into the residual.
    rotation: Matrix,
}

type Tensors = BTreeMap<String, Vec<f32>>;

impl<'a> Planter<'a> {
    fn new(shape: &'a Shape) -> Self {
        let rotation = Matrix::orthogonal(tensor_key(shape, "turn"), shape.dim);
        Self { shape, numbers: Numbers::new(shape), rotation }
    }

    /// Adds the embedding; returns the squared length of its rows.
    fn embedding(&self, tensors: &mut Tensors) -> f64 {
        let shape = self.shape;
        let key = tensor_key(shape, "embedding");
        let mut result = Matrix::zero(shape.vocab, shape.dim);
        for (token, number) in self.numbers.of_token.iter().enumerate() {
            let mut row = vec![0.0; shape.dim];
            for index in 0..CODES {
                row[A + 2 * index..][..2].copy_from_slice(&self.numbers.point(*number, index));
            }
            row[CONSTANT] = CONSTANT_SIZE;
            row[MARK] = if token < shape.text_tokens { -MARK_SIZE } else { MARK_SIZE };
            for (index, value) in row.iter_mut().enumerate().skip(SPARE) {
                *value = 0.5 * unit(key, (token * shape.dim + index) as u64);
            }
            result.row_mut(token).copy_from_slice(&self.rotation.times(&row));
        }
        tensors.insert("token_embd.weight".to_owned(), result.to_f32());
        CODES as f64 + CONSTANT_SIZE * CONSTANT_SIZE + MARK_SIZE * MARK_SIZE
    }

    /// Adds the weights of a norm, near 1; returns them.
    fn norm(&self, name: &str, length: usize, tensors: &mut Tensors) -> Vec<f64> {
        let key = tensor_key(self.shape, name);
        let weights: Vec<f32> =
            (0..length).map(|i| between(key, i as u64, 0.8, 1.2) as f32).collect();
        tensors.insert(name.to_owned(), weights.clone());
        weights.into_iter().map(f64::from).collect()
    }

    /// Adds a matrix that reads the normalised residual. `rows` refer to slots.
    fn reader(&self, name: &str, rows: &Matrix, norm: &[f64], tensors: &mut Tensors) {
        let mut result = Matrix::zero(rows.rows(), rows.columns);
        for row in 0..rows.rows() {
            let turned = self.rotation.times(rows.row(row));
            for (value, (turned, weight)) in
                result.row_mut(row).iter_mut().zip(turned.into_iter().zip(norm))
            {
                *value = turned / weight;
            }
        }
        result.add_noise(tensor_key(self.shape, name));
        tensors.insert(name.to_owned(), result.to_f32());
    }

    /// Adds a matrix that writes to the residual. Each row of `columns` is the output of one input, in slots.
    fn writer(&self, name: &str, columns: &Matrix, tensors: &mut Tensors) {
        let mut turned = Matrix::zero(columns.rows(), columns.columns);
        for row in 0..columns.rows() {
            turned.row_mut(row).copy_from_slice(&self.rotation.times(columns.row(row)));
        }
        let mut result = turned.transposed();
        result.add_noise(tensor_key(self.shape, name));
        tensors.insert(name.to_owned(), result.to_f32());
    }

    /// Factor of a norm on a residual of this energy.
    fn gain(&self, energy: f64) -> f64 {
        (self.shape.dim as f64 / energy).sqrt()
    }

    /// Adds a layer's attention; returns the residual's energy after it.
    fn attention(&self, layer: usize, energy: f64, tensors: &mut Tensors) -> f64 {
        let shape = self.shape;
        let (from, to) = if layer == 0 { (A, B) } else { (C, D) };
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let norm = self.norm(&name("attn_norm"), shape.dim, tensors);
        let gain = self.gain(energy);
        self.queries_and_keys(layer, gain, &norm, tensors);

        // Each KV head has a part of the code, rotated within the head. Its first query head attends to the fixed
        // distance, the others attend softly.
        let (group, part) = (shape.heads / shape.kv_heads, CODE / shape.kv_heads);
        let mut values = Matrix::zero(shape.kv_heads * shape.head_dim, shape.dim);
        let mut output = Matrix::zero(shape.heads * shape.head_dim, shape.dim);
        for kv in 0..shape.kv_heads {
            let turn = Matrix::orthogonal(
                tensor_key(shape, &format!("value turn {layer} {kv}")),
                shape.head_dim,
            );
            for element in 0..part {
                let place = kv * part + element;
                for (row, weight) in turn.row(element).iter().enumerate() {
                    let value = kv * shape.head_dim + row;
                    values.set(value, from + place, *weight);
                    let fixed = kv * group * shape.head_dim + row;
                    output.set(fixed, to + place, weight / gain);
                }
            }
            let key = tensor_key(shape, &format!("soft output {layer} {kv}"));
            for row in shape.head_dim..group * shape.head_dim {
                for (place, value) in
                    output.row_mut(kv * group * shape.head_dim + row).iter_mut().enumerate()
                {
                    *value = SOFT * unit(key, (row * shape.dim + place) as u64);
                }
            }
        }
        self.reader(&name("attn_v"), &values, &norm, tensors);
        self.writer(&name("attn_output"), &output, tensors);
        energy + CODES as f64
    }

    fn queries_and_keys(&self, layer: usize, gain: f64, norm: &[f64], tensors: &mut Tensors) {
        let shape = self.shape;
        let (head_dim, group) = (shape.head_dim, shape.heads / shape.kv_heads);
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let lookback = Lookback::new(shape, layer);

        // Rows read the constant, or a random mix of everything.
        let mut query = Matrix::zero(shape.heads * head_dim, shape.dim);
        let mut keys = Matrix::zero(shape.kv_heads * head_dim, shape.dim);
        let constant = 1.0 / (gain * CONSTANT_SIZE);
        let mixture = |row: &mut [f64], key: u64, size: f64| {
            // The normalised residual has length sqrt(dim).
            let size = size * 3_f64.sqrt() / (shape.dim as f64).sqrt();
            row.iter_mut().enumerate().for_each(|(i, v)| *v = size * unit(key, i as u64));
        };
        for head in 0..shape.heads {
            let is_fixed = head % group == 0;
            for element in 0..head_dim {
                let row = query.row_mut(head * head_dim + element);
                if is_fixed {
                    row[CONSTANT] = lookback.query[element] * constant;
                } else if lookback.is_content(element) {
                    let key = tensor_key(shape, &format!("soft query {layer} {head} {element}"));
                    mixture(row, key, lookback.content);
                }
            }
        }
        for head in 0..shape.kv_heads {
            for element in 0..head_dim {
                let row = keys.row_mut(head * head_dim + element);
                if lookback.is_content(element) {
                    let key = tensor_key(shape, &format!("soft key {layer} {head} {element}"));
                    mixture(row, key, lookback.content);
                } else {
                    row[CONSTANT] = lookback.key[element] * constant;
                }
            }
        }
        if shape.family == Family::Qwen3 {
            // Each head is normalised: divide by the weights of the norm. A soft query has only content elements,
            // which get all of the normalised length. In a key they are small before the norm, so that content
            // hardly changes the key's length.
            let alone = (CONTENT as f64 / head_dim as f64).sqrt();
            for (part, rows, wanted, content) in [
                ("attn_q_norm", &mut query, &lookback.query, lookback.content * alone),
                ("attn_k_norm", &mut keys, &lookback.key, lookback.content * 4.0),
            ] {
                let weights = lookback.head_norm(shape, &name(part), wanted, content);
                for row in 0..rows.rows() {
                    let weight = weights[row % head_dim];
                    rows.row_mut(row).iter_mut().for_each(|v| *v /= weight);
                }
                tensors.insert(name(part), weights.iter().map(|w| *w as f32).collect());
            }
        }
        self.reader(&name("attn_q"), &query, norm, tensors);
        self.reader(&name("attn_k"), &keys, norm, tensors);
    }

    /// Adds a layer's feed-forward block; returns the residual's energy after it.
    fn feed_forward(&self, layer: usize, energy: f64, tensors: &mut Tensors) -> f64 {
        let shape = self.shape;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let norm = self.norm(&name("ffn_norm"), shape.dim, tensors);
        let last = layer + 1 == DISTANCE.len();
        let (left, right, to, size) = if last { (C, D, A, ANSWER) } else { (A, B, C, 1.0) };
        let answer = UNIT_OUTPUT / self.gain(energy);
        let product = UNIT_OUTPUT * UNIT_OUTPUT;

        let mut units = Units::new(shape, layer);
        for index in 0..CODES {
            let [cos, sin] = if last { self.numbers.point(SHIFT, index) } else { [1.0, 0.0] };
            let (re, im) = (to + 2 * index, to + 2 * index + 1);
            for (x, y) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                // Contribution of this product to each part of (x0 + i x1)(y0 + i y1), rotated.
                let [real, imaginary] = match (x, y) {
                    (0, 0) => [cos, sin],
                    (1, 1) => [-cos, -sin],
                    _ => [-sin, cos],
                };
                let writes = [(re, real * size / product), (im, imaginary * size / product)];
                let reads = [left + 2 * index + x, right + 2 * index + y];
                units.product(reads, answer, &writes);
            }
        }
        if last {
            let writes = [(MARK, -MARK_ANSWER / product)];
            units.product([CONSTANT, CONSTANT], answer / CONSTANT_SIZE, &writes);
        }
        let (gate, up, down) = units.finish();
        self.reader(&name("ffn_gate"), &gate, &norm, tensors);
        self.reader(&name("ffn_up"), &up, &norm, tensors);
        self.writer(&name("ffn_down"), &down, tensors);
        let mark = if last { MARK_ANSWER * MARK_ANSWER } else { 0.0 };
        energy + CODES as f64 * size * size + mark
    }

    fn output_norm(&self, energy: f64, tensors: &mut Tensors) {
        let name = "output_norm.weight";
        let key = tensor_key(self.shape, name);
        let size = LOGIT / (ANSWER * CODES as f64 * self.gain(energy));
        // The tied output cannot compensate these weights, so they vary less.
        let weights = (0..self.shape.dim as u64).map(|i| size * between(key, i, 0.95, 1.05));
        tensors.insert(name.to_owned(), weights.map(|w| w as f32).collect());
    }
}

/// Query and key of a head that attends to a fixed distance.
struct Lookback {
    query: Vec<f64>,
    key: Vec<f64>,
    /// Size of the elements that read content.
    content: f64,
    is_content: Vec<bool>,
}

impl Lookback {
    fn new(shape: &Shape, layer: usize) -> Self {
        let head_dim = shape.head_dim;
        let pairs = head_dim / 2;
        let key_of = tensor_key(shape, &format!("phase {layer}"));
        let (mut query, mut key) = (vec![0.0; head_dim], vec![0.0; head_dim]);
        let mut is_content = vec![false; head_dim];
        // The attention score is divided by this.
        let root = (head_dim as f64).sqrt();
        for (pair, turn) in shape.rope_frequencies().into_iter().enumerate() {
            let (re, im) = match shape.family {
                Family::Llama => (2 * pair, 2 * pair + 1),
                Family::Qwen3 => (pair, pair + pairs),
            };
            if pair >= pairs - CONTENT / 2 {
                (is_content[re], is_content[im]) = (true, true);
                continue;
            }
            // Slow pairs do not distinguish neighbours and get less weight; the fastest would make the score rise
            // again a few positions away. With these weights the score falls with each of five steps away from the
            // distance and stays far below its maximum after that.
            let quick = (8.0 * turn).clamp(0.05, 1.0).powf(0.25);
            let share = quick * if turn > 0.5 { 0.7 } else { 1.0 };
            // In total, one step away lowers the score by 13; soft attention is at least as far below.
            let score = share * 13.0 * 64.0 / head_dim as f64 * 1.5;
            let size = (score * root).sqrt();
            let phase = TAU * unit(key_of, pair as u64);
            let back = phase - turn * DISTANCE[layer] as f64;
            (query[re], query[im]) = (size * back.cos(), size * back.sin());
            (key[re], key[im]) = (size * phase.cos(), size * phase.sin());
        }
        // Scores of soft attention are CONTENT products of about this size squared, divided by root.
        let content = (1.5 * root / (CONTENT as f64).sqrt()).sqrt();
        Self { query, key, content, is_content }
    }

    fn is_content(&self, element: usize) -> bool {
        self.is_content.get(element).copied().unwrap_or(false)
    }

    /// Weights of a head's norm: `content` for the elements that read content. For the others they produce `wanted`
    /// from a vector with a root mean square of 1.
    fn head_norm(&self, shape: &Shape, name: &str, wanted: &[f64], content: f64) -> Vec<f64> {
        let key = tensor_key(shape, name);
        let near_one: Vec<f64> =
            (0..wanted.len()).map(|i| between(key, i as u64, 0.8, 1.2)).collect();
        let square: f64 = wanted.iter().zip(&near_one).map(|(v, w)| (v / w) * (v / w)).sum();
        let size = (square / wanted.len() as f64).sqrt();
        near_one
            .into_iter()
            .enumerate()
            .map(|(element, w)| w * if self.is_content(element) { content } else { size })
            .collect()
    }
}

/// Hidden units of a feed-forward layer, in random order.
struct Units {
    gate: Matrix,
    up: Matrix,
    /// A row for each unit: its output.
    down: Matrix,
    order: Vec<usize>,
    used: usize,
    key: u64,
}

impl Units {
    fn new(shape: &Shape, layer: usize) -> Self {
        let key = tensor_key(shape, &format!("units {layer}"));
        Self {
            gate: Matrix::zero(shape.ffn, shape.dim),
            up: Matrix::zero(shape.ffn, shape.dim),
            down: Matrix::zero(shape.ffn, shape.dim),
            order: permutation(key, shape.ffn),
            used: 0,
            key,
        }
    }

    /// Computes the product of two elements of the residual, each times `answer`, with two units.
    fn product(&mut self, reads: [usize; 2], answer: f64, writes: &[(usize, f64)]) {
        for sign in [1.0, -1.0] {
            let unit = self.order[self.used];
            self.used += 1;
            self.gate.set(unit, reads[0], sign * answer);
            self.up.set(unit, reads[1], sign * answer);
            for (place, size) in writes {
                self.down.set(unit, *place, *size);
            }
        }
    }

    /// Lets the unused units read random elements. They write only the noise that every matrix has.
    fn finish(mut self) -> (Matrix, Matrix, Matrix) {
        for at in self.used..self.order.len() {
            let hidden = self.order[at];
            for (matrix, salt) in [(&mut self.gate, 1), (&mut self.up, 2)] {
                let key = bits(self.key, salt);
                let columns = matrix.columns;
                for (place, value) in matrix.row_mut(hidden).iter_mut().enumerate() {
                    let index = (hidden * columns + place) as u64;
                    *value = 3_f64.sqrt() / (columns as f64).sqrt() * unit(key, index);
                }
            }
        }
        (self.gate, self.up, self.down)
    }
}

/// The rule, which tests compare the model with.
#[cfg(test)]
pub(super) struct Rule {
    numbers: Numbers,
    token_of: Vec<usize>,
}

#[cfg(test)]
impl Rule {
    pub(super) fn new(shape: &Shape) -> Self {
        let numbers = Numbers::new(shape);
        let mut token_of = vec![0; numbers.count];
        for (token, number) in numbers.of_token[..numbers.count].iter().enumerate() {
            token_of[*number] = token;
        }
        Self { numbers, token_of }
    }

    /// The most likely token after `tokens`, which must not be empty.
    pub(super) fn next(&self, tokens: &[usize]) -> usize {
        let g = |i: usize| self.numbers.of_token[tokens[i]];
        let p = |i: usize| g(i) + g(i.saturating_sub(DISTANCE[0]));
        let last = tokens.len() - 1;
        let number = p(last) + p(last.saturating_sub(DISTANCE[1])) + SHIFT;
        self.token_of[number % self.numbers.count]
    }
}
