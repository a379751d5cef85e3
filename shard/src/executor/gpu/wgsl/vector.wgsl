// The vectors of sessions in a layer that recurs: what the table of a row's session says, as `vector.rs` writes it.
const NO_PAGE: u32 = 0xffffffffu;

fn page_before(layer: u32, row: u32) -> u32 { return page_of(layer, row, 0u); }
fn page_behind(layer: u32, row: u32) -> u32 { return page_of(layer, row, 1u); }
fn first_row(layer: u32, row: u32) -> u32 { return page_of(layer, row, 2u); }

// Whether the rows of this row's session end with it.
fn is_last(row: u32) -> bool {
    return row + 1u == pass_info[0] || pass_info[5u + 2u * row] != pass_info[7u + 2u * row];
}

// The page of the checkpoint behind this row, if there is one that is kept.
fn page_kept(layer: u32, row: u32) -> u32 {
    let behind = pass_info[4u + 2u * row] + 1u;
    let first = page_of(layer, row, 3u);
    if (behind % 256u != 0u || behind / 256u < first) { return NO_PAGE; }
    return page_of(layer, row, 4u + behind / 256u - first);
}
