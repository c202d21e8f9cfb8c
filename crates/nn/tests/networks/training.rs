//! Training against PyTorch's losses (tests/data/nn/make.py), rejected inputs, loading and saving
//! of states. Runs on the devices of the including test.

use super::devices;
use device::{Data, Device};
use nn::conv::{Windows, max_pool};
use nn::functions::{relu, tanh};
use nn::layers::{BatchNorm, Conv, Linear, Net};
use nn::loss::cross_entropy;
use nn::optimiser::{Moments, Optimiser};
use nn::shape::flatten;
use nn::{Failure, Result, Tensor, Trainer};
use parity::ops::unit;
use plan::DType;

/// Lines of network, optimiser and losses.
pub(super) const LOSSES: &str = include_str!("../../../../tests/data/nn/losses.txt");
const BATCH: usize = 16;

fn numbers(seed: u64, n: usize, low: f64, high: f64) -> Vec<f32> {
    unit(seed, n).map(|u| (low + u * (high - low)) as f32).collect()
}

fn mlp(net: &mut Net) -> Result {
    let x = net.input("x", DType::F32, &[BATCH, 8])?;
    let (first, second) = (Linear::new(net, "first", 8, 16)?, Linear::new(net, "second", 16, 4)?);
    let x = first.forward(net, x)?;
    let x = tanh(&mut net.g, x)?;
    second.forward(net, x)
}

fn convolutional(net: &mut Net) -> Result {
    let x = net.input("x", DType::F32, &[BATCH, 1, 8, 8])?;
    let conv = Conv::new(net, "conv", [1, 4], &[3, 3], Windows::default().padded(1))?;
    let norm = BatchNorm::new(net, "norm", 4)?;
    let out = Linear::new(net, "out", 64, 4)?;
    let x = conv.forward(net, x)?;
    let x = norm.forward(net, x)?;
    let x = relu(&mut net.g, x)?;
    let x = max_pool(&mut net.g, x, &[2, 2], &Windows::stride(2))?;
    let x = flatten(&mut net.g, x, 1)?;
    out.forward(net, x)
}

fn loss(net: &mut Net, answer: Tensor) -> Result {
    let classes = net.input("classes", DType::I32, &[BATCH])?;
    cross_entropy(&mut net.g, answer, classes, 0.0)
}

fn optimiser(name: &str) -> Optimiser {
    let sgd = |nesterov, decay| Optimiser::Sgd { rate: 0.05, momentum: 0.9, nesterov, decay };
    match name {
        "sgd" => Optimiser::sgd(0.1),
        "momentum" => sgd(false, 0.01),
        "nesterov" => sgd(true, 0.0),
        "adam" => Optimiser::Adam(Moments::new(0.01).with_decay(0.01)),
        "adamw" => Optimiser::AdamW(Moments::new(0.01).with_decay(0.1)),
        _ => Optimiser::Lamb(Moments { eps: 1e-8, ..Moments::new(0.01).with_decay(0.1) }),
    }
}

fn trainer(device: &dyn Device, network: fn(&mut Net) -> Result, by: Optimiser) -> Trainer {
    let step = |net: &mut Net| {
        let answer = network(net)?;
        loss(net, answer)
    };
    Trainer::new(device, by, 1, step, network).unwrap()
}

/// Trains as each of [`LOSSES`]' `lines` describes, and compares the losses.
pub(super) fn check_losses<'a>(lines: impl Iterator<Item = &'a str>) {
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let want: Vec<f32> = words[2..].iter().map(|word| word.parse().unwrap()).collect();
        let (network, inputs): (fn(&mut Net) -> Result, usize) =
            if words[0] == "mlp" { (mlp, BATCH * 8) } else { (convolutional, BATCH * 64) };
        let x = numbers(100, inputs, -1.0, 1.0);
        let classes: Vec<i32> = unit(101, BATCH).map(|u| (u * 4.0) as i32).collect();
        for device in devices() {
            let mut trainer = trainer(&*device, network, optimiser(words[1]));
            let first: Vec<(String, Vec<f32>)> = trainer
                .states()
                .filter(|(name, _)| {
                    let last = name.rsplit('.').next().unwrap();
                    ["weight", "bias"].contains(&last)
                })
                .zip(1..)
                .map(|((name, shape), seed)| {
                    let (low, high) = if name == "norm.weight" { (0.5, 1.5) } else { (-0.4, 0.4) };
                    (name.to_owned(), numbers(seed, shape.iter().product(), low, high))
                })
                .collect();
            trainer.load(first.iter().map(|(name, values)| (&**name, &**values))).unwrap();
            for (step, want) in want.iter().enumerate() {
                let batch = [("x", Data::F32(&x)), ("classes", Data::I32(&classes))];
                let have = trainer.train(&batch).unwrap();
                let what = format!("{} {}, step {step}", words[0], words[1]);
                let name = device.info().name;
                assert!(
                    (have - want).abs() < 2e-4 * want.max(1.0),
                    "{what} on {name}: {have}, {want}"
                );
            }
        }
    }
}

/// One submission of several steps equals as many single submissions.
#[test]
fn steps_replay_and_states_load_and_save() {
    for device in devices() {
        let x = numbers(100, BATCH * 8, -1.0, 1.0);
        let classes: Vec<i32> = unit(101, BATCH).map(|u| (u * 4.0) as i32).collect();
        let batch = [("x", Data::F32(&x)), ("classes", Data::I32(&classes))];
        let by = Optimiser::Adam(Moments::new(0.01));
        let (mut one, mut many) = (trainer(&*device, mlp, by), trainer(&*device, mlp, by));
        let mut last = 0.0;
        for _ in 0..8 {
            last = one.train(&batch).unwrap();
        }
        assert_eq!(many.train_for(&batch, 8).unwrap(), last);
        let saved = one.save().unwrap();
        assert_eq!(saved, many.save().unwrap());
        assert!(saved.iter().any(|(name, _)| name == "first.weight.square"));

        let mut other = trainer(&*device, mlp, by);
        other.load(saved.iter().map(|(name, values)| (&**name, &**values))).unwrap();
        assert_eq!(other.train(&batch).unwrap(), one.train(&batch).unwrap());
        assert_eq!(other.answer(&batch[..1]).unwrap(), one.answer(&batch[..1]).unwrap());

        let unknown = one.train(&[("y", Data::F32(&x))]).unwrap_err();
        assert!(matches!(&unknown, Failure::Unknown { known, .. } if known.contains(&"x".into())));
        let short = one.train(&[("x", Data::F32(&x[1..]))]).unwrap_err().to_string();
        assert_eq!(short, "`x` needs 128 values, got 127");
    }
}
