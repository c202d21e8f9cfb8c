//! An ONNX model whose weights lie in files beside it.

/// A message's field: key, length, bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![number << 3 | 2];
    // A length of up to two groups of seven bits.
    let length = bytes.len();
    if length < 128 {
        all.push(length as u8);
    } else {
        all.extend([length as u8 | 128, (length >> 7) as u8]);
    }
    all.extend(bytes);
    all
}

/// `y = x + w + v`, all `[2, 2]`, the last two in files: each with what the model says of where.
#[must_use]
pub fn model(w: &[(&str, &str)], v: &[(&str, &str)]) -> Vec<u8> {
    let tensor = |name: &[u8], said: &[(&str, &str)]| {
        let said = said.iter().flat_map(|(key, value)| {
            field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
        });
        let said: Vec<u8> = said.collect();
        [&[8, 2, 8, 2, 16, 1][..], &field(8, name), &said, &[112, 1]].concat()
    };
    let node = |a: &[u8], b: &[u8], out: &[u8]| {
        field(1, &[field(1, a), field(1, b), field(2, out), field(4, b"Add")].concat())
    };
    let shape = [&[8, 1][..], &field(2, &[0x0a, 2, 8, 2, 0x0a, 2, 8, 2])].concat();
    let info = |name: &[u8]| [field(1, name), field(2, &field(1, &shape))].concat();
    let graph = [
        node(b"x", b"w", b"s"),
        node(b"s", b"v", b"y"),
        field(5, &tensor(b"w", w)),
        field(5, &tensor(b"v", v)),
        field(11, &info(b"x")),
        field(12, &info(b"y")),
    ];
    [field(7, &graph.concat()), field(8, &[16, 17])].concat()
}
