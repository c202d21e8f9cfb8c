//! ONNX models with external data.

/// A protobuf field: key, length, bytes.
#[must_use]
pub fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![number << 3 | 2];
    // A varint of up to two groups of seven bits.
    let length = bytes.len();
    if length < 128 {
        all.push(length as u8);
    } else {
        all.extend([length as u8 | 128, (length >> 7) as u8]);
    }
    all.extend(bytes);
    all
}

/// `y = x + w + v`, all `[2, 2]`; `w` and `v` are external, with these `external_data` entries.
#[must_use]
pub fn model(w: &[(&str, &str)], v: &[(&str, &str)]) -> Vec<u8> {
    let tensor = |name: &[u8], entries: &[(&str, &str)]| {
        let entries = entries.iter().flat_map(|(key, value)| {
            field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
        });
        let entries: Vec<u8> = entries.collect();
        [&[8, 2, 8, 2, 16, 1][..], &field(8, name), &entries, &[112, 1]].concat()
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

/// `logits = (w[rows] + x) w^T` and `scaled = w * w`, with `w [80, 64]` in the file `data`, `rows
/// [3]` and `x [3, 64]`.
#[must_use]
pub fn tied() -> Vec<u8> {
    let location = field(13, &[field(1, b"location"), field(2, b"data")].concat());
    let w = [&[8, 80, 8, 64, 16, 1][..], &field(8, b"w"), &location, &[112, 1]].concat();
    let node = |op: &[u8], inputs: &[&[u8]], out: &[u8]| {
        let inputs = inputs.iter().flat_map(|name| field(1, name));
        field(1, &inputs.chain(field(2, out)).chain(field(4, op)).collect::<Vec<u8>>())
    };
    let info = |name: &[u8], elem: u8, shape: &[u8]| {
        let shape: Vec<u8> = shape.iter().flat_map(|n| field(1, &[8, *n])).collect();
        let of = [&[8, elem][..], &field(2, &shape)].concat();
        [field(1, name), field(2, &field(1, &of))].concat()
    };
    let graph = [
        node(b"Gather", &[b"w", b"rows"], b"taken"),
        node(b"Add", &[b"taken", b"x"], b"hidden"),
        node(b"Transpose", &[b"w"], b"turned"),
        node(b"MatMul", &[b"hidden", b"turned"], b"logits"),
        node(b"Mul", &[b"w", b"w"], b"scaled"),
        field(5, &w),
        field(11, &info(b"rows", 7, &[3])),
        field(11, &info(b"x", 1, &[3, 64])),
        field(12, &info(b"logits", 1, &[3, 80])),
        field(12, &info(b"scaled", 1, &[80, 64])),
    ];
    [field(7, &graph.concat()), field(8, &[16, 17])].concat()
}
