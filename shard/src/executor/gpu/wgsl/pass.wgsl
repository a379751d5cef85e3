// What a pass is about: 0 rows, 1 pages a table has room for, 2 sessions, 3 zero (opaque to compilers), then position and
// session of each row, then a table of pages for each layer and session.
@group(0) @binding(0) var<storage, read> pass_info: array<u32>;

fn page_of(layer: u32, row: u32, page: u32) -> u32 {
    let tables = 4u + 2u * pass_info[0];
    return pass_info[tables + (layer * pass_info[2] + pass_info[5u + 2u * row]) * pass_info[1] + page];
}
