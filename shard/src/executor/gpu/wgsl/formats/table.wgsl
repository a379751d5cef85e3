// Entries of a table of sixteen int8 values, TABLE, for four codes, one a byte.
fn entry(code: u32) -> u32 {
    let low = select(TABLE0, TABLE1, (code & 4u) != 0u);
    let high = select(TABLE2, TABLE3, (code & 4u) != 0u);
    return (select(low, high, (code & 8u) != 0u) >> (8u * (code & 3u))) & 0xffu;
}
fn entries(four: u32) -> u32 {
    return entry(four & 15u) | (entry((four >> 8u) & 15u) << 8u) | (entry((four >> 16u) & 15u) << 16u)
        | (entry((four >> 24u) & 15u) << 24u);
}
fn look_up() {
    for (var i = 0u; i < 8u; i = i + 1u) { w[i] = entries(w[i]); }
}
